"""python3 -m prd.torch.average a.pt b.pt -o c.pt: one model of several files, each a state_dict as torch.save wrote it."""
import argparse
import pickle
import sys

import torch


def _mean(tensors):
    first = tensors[0]
    if first.layout != torch.strided or first.is_quantized or not (first.is_floating_point() or first.is_complex()):
        return first
    wide = torch.complex128 if first.is_complex() else torch.float64
    return (sum(tensor.to(wide) for tensor in tensors) / len(tensors)).to(first.dtype)


def average(states):
    """The mean of state_dicts, in double precision; tensors that are not floating point, nor complex, or not dense, are the first one's."""
    first = states[0]
    for other in states[1:]:
        if {k: v.shape for k, v in other.items()} != {k: v.shape for k, v in first.items()}:
            raise ValueError("the files have models of other names or shapes")
    return {name: _mean([state[name] for state in states]) for name in first}


def load(name, key=None):
    """The state_dict in the file, if it is tensors and plain values: a pickle can run any program, and whose file this is, is not known."""
    try:
        found = torch.load(name, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        why = str(error).rpartition("error: ")[2]  # before that PyTorch says how to read it all the same
        raise ValueError(f"{name} holds more than tensors and plain values, and is not read: {why}") from error
    except (EOFError, RuntimeError) as error:
        raise ValueError(f"{name} is no whole file of torch.save: {str(error).partition(chr(10))[0]}") from error
    where = name if key is None else f"{name}, --key {key}"
    if key is not None:
        if not isinstance(found, dict) or key not in found:
            raise ValueError(f"{where}: there is none; there are {', '.join(map(str, found)) if isinstance(found, dict) else 'no keys'}")
        found = found[key]
    if not isinstance(found, dict):
        raise ValueError(f"{where}: found a {type(found).__name__}, needed is a state_dict")
    for entry, value in found.items():
        if not torch.is_tensor(value):
            raise ValueError(f"{where}: is no state_dict, because {entry} is a {type(value).__name__}; a state_dict in it is named by --key")
    return found


def main():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m prd.torch.average",
        description="Averages models: files of torch.save(model.state_dict()). Files of strangers do no harm: nothing but tensors and plain values is "
        "read from them (weights_only=True), and a file with more is refused.",
    )
    parser.add_argument("files", nargs="+", help="state_dicts, or dicts that have one by --key")
    parser.add_argument("-o", "--output", required=True, help="where the average goes, as a state_dict")
    parser.add_argument("--key", help="where in each file the state_dict is, as \"model\"")
    args = parser.parse_args()
    try:
        torch.save(average([load(name, args.key) for name in args.files]), args.output)
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"prd.torch.average: {error}")


if __name__ == "__main__":
    main()

"""python3 -m prd.torch.average a.pt b.pt -o c.pt: one model of several files, each a state_dict as torch.save wrote it."""
import argparse
import pickle
import sys

import torch


def average(states):
    """The mean of state_dicts, in double precision; tensors that are not floating point are the first one's."""
    first = states[0]
    for other in states[1:]:
        if {k: v.shape for k, v in other.items()} != {k: v.shape for k, v in first.items()}:
            raise ValueError("the files have models of other names or shapes")
    return {
        name: (sum(state[name].double() for state in states) / len(states)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }


def load(name):
    """What is in the file, if it is tensors and plain values: a pickle can run any program, and whose file this is, is not known."""
    try:
        return torch.load(name, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        why = str(error).rpartition("error: ")[2]  # before that PyTorch says how to read it all the same
        raise ValueError(f"{name} holds more than tensors and plain values, and is not read: {why}") from error


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
        states = [load(name) for name in args.files]
        if args.key is not None:
            states = [state[args.key] for state in states]
        torch.save(average(states), args.output)
    except (ValueError, AttributeError) as error:
        sys.exit(f"prd.torch.average: {error}")


if __name__ == "__main__":
    main()

"""What a session tells: of a step, of the job, of a share of its batch, of groups and of memory."""
from typing import NamedTuple


class StepResult(NamedTuple):
    """What a step did. What each field means under each engine: worker/README.md. Times are in seconds."""

    steps: int  # this worker's own so far, this one included if not discarded
    done: bool  # the job's goal is reached: the loop may end, and finish
    iteration: int  # the replica's position in the job, in the engine's unit
    group: int
    members: tuple
    weights: tuple
    attempts: int
    adopted: bool  # another replica has replaced this one
    included: bool
    rounds: int
    local_steps: int
    reduced_bytes: int
    sent_bytes: int
    computed: float
    waited: float
    reduced: float
    reason: str
    partial: bool = False  # nothing was applied: `share` says what of the step is still to be computed


class Progress(NamedTuple):
    """How far the whole job is, by at most a heartbeat too little."""

    steps: int  # of all workers
    samples: int
    workers: int
    goal_steps: int
    goal_samples: int
    done: bool
    own_steps: int
    own_samples: int


class BatchShare(NamedTuple):
    """Samples of a step's batch, which is the batch of all workers together: those from `first` on, as many as `samples`."""

    step: int  # whose batch: from 1, as StepResult.iteration counts
    first: int  # counted from 0 within the batch
    samples: int  # 0: the job has no batch
    batch: int  # samples of all workers; 0: the engine divides none


class GroupTransports(NamedTuple):
    """How this worker's groups were reduced: by NCCL on a communicator of the group, of more, or through host memory."""

    collective: int
    exchange: int
    staged: int


class MemoryHeld(NamedTuple):
    """Bytes that the library holds beside the program's arrays, and the most so far: in host memory, and on the device."""

    host: int
    host_peak: int
    device: int
    device_peak: int

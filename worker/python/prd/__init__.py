"""prd for Python: data-parallel training that stays fast when workers are unequal.

    import numpy, prd
    with prd.Session() as session:          # PRD_JOB, PRD_RANK and so on say where
        session.attach(weights, gradients, apply)
        while not session.step(samples=batch).done:
            compute_gradients()
        session.finish()

For PyTorch: prd.torch. Programs that start workers: python3 -m prd.run.
"""
from prd.arrays import Tensor, tensor
from prd.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal,
                        InvalidArgument, NotFound, ResourceExhausted, Unavailable)
from prd.results import BatchShare, GroupTransports, MemoryHeld, Progress, StepResult
from prd.session import Session, leave_soon

__version__ = "0.1.0"

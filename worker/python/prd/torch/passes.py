"""The gradient of a step that is computed in several passes."""
import torch

_HALF = (torch.float16, torch.bfloat16)


class Passes:
    """The mean of the gradients of a step's passes so far. Has memory only while a step is open.

    A pass: `bring`, a step of the session, `end`.
    """

    def __init__(self):
        self._kept, self._weight, self._step = None, 0, 0  # of the passes before this one: means, float32 for half precision; their samples, and step
        self._gradients, self._samples, self._exact = [], 0, []  # of this pass

    def bring(self, gradients, samples, step):
        """Makes of these gradients, the mean over a pass, the mean over all passes of the step so far. None is a gradient of zeros."""
        if step != self._step:
            self.drop()  # the job has gone on
            self._step = step
        self._gradients, self._samples, self._exact = list(gradients), samples, [None] * len(gradients)
        if self._kept is None:
            return
        share = samples / max(samples + self._weight, 1)
        with torch.no_grad():
            for i, (gradient, kept) in enumerate(zip(gradients, self._kept)):
                if kept is None:
                    if gradient is not None:
                        gradient.mul_(share)
                elif kept.dtype == gradient.dtype:
                    gradient.mul_(share).add_(kept, alpha=1 - share)
                else:
                    self._exact[i] = gradient.to(kept.dtype).mul_(share).add_(kept, alpha=1 - share)
                    gradient.copy_(self._exact[i])

    def end(self, partial):
        """The step of the session has ended; partial: another pass follows."""
        if not partial:
            return self.drop()
        self._weight += self._samples
        self._kept = [self._copy(gradient) if exact is None else exact for gradient, exact in zip(self._gradients, self._exact)]
        self._gradients, self._exact = [], []

    def drop(self):
        """Nothing of the step counts."""
        self.__init__()

    @property
    def open(self):
        """Whether there are passes of a step that is not whole."""
        return self._kept is not None

    @staticmethod
    def _copy(gradient):
        if gradient is None:
            return None
        gradient = gradient.detach()
        return gradient.float() if gradient.dtype in _HALF else gradient.clone()

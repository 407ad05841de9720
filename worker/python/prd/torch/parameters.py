"""Which parameters of a script are the job's, and what a step notices of changes after attach."""
import itertools
import operator

from prd import errors

FROZEN_BYTES = 1 << 30  # frozen parameters of so many bytes are the job's unless the script says otherwise


def _first(names):
    return ", ".join(names[:3]) + " and more" * (len(names) > 3)


def _bytes(parameters):
    return sum(p.numel() * p.element_size() for p in parameters)


class Parameters:
    """Those that the optimizers have, or the model's where there is none: `names` and `tensors`.

    Frozen ones are among them, because a script may unfreeze them later; but not those that no optimizer can train, nor
    where `frozen` says no, or unless it says yes where they are many. What is left out is `fixed`.
    """

    def __init__(self, model, optimizers, frozen, dtypes):
        self._model, self._optimizers = model, optimizers
        self._listed = self._groups() if optimizers else list(model.parameters())
        names = {id(p): name for name, p in model.named_parameters()}
        known = {id(p) for p in self._listed}
        missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]
        if missing:
            raise errors.InvalidArgument(
                f"{_first(missing)}: the optimizer does not have these parameters of the model, so they would differ between "
                "workers; give them to it, or freeze them (requires_grad = False)"
            )
        unique = {id(p): p for p in self._listed}.values()
        trained = [p for p in unique if p.requires_grad]
        if not trained:
            raise errors.InvalidArgument("the optimizer has no parameter that requires a gradient")
        can_be = [p for p in unique if not p.requires_grad and p.dtype in dtypes and p.device == trained[0].device]
        self.said = ""  # for rank 0 to say
        if frozen is None and _bytes(can_be) > FROZEN_BYTES:
            frozen = False
            self.said = (f"{_bytes(can_be) / (1 << 30):.1f} GiB of the optimizer's parameters are frozen, and are not averaged. "
                         "A script that unfreezes some of them later says so: attach(frozen=True)")
        taken = {id(p) for p in (trained if frozen is False else trained + can_be)}
        self.tensors = [p for p in unique if id(p) in taken]
        self.names = [names.get(id(p), f"parameter {i} of the optimizer") for i, p in enumerate(self.tensors)]
        self.fixed = [(name, p) for name, p in model.named_parameters() if id(p) not in taken]
        self._fixed = [p for _, p in self.fixed]
        self._of_model = {id(p): p for p in model.parameters()}
        self._look_at_modules()

    def _groups(self):
        return [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]

    def _look_at_modules(self):
        self._dicts = [d for m in self._model.modules() for d in (m._parameters, m._modules) if isinstance(d, dict)]
        self._held = list(itertools.chain.from_iterable(map(dict.values, self._dicts)))

    def check(self):
        """FailedPrecondition names what is other than at attach."""
        if self._optimizers:
            listed = self._groups()
            if len(listed) != len(self._listed) or not all(map(operator.is_, listed, self._listed)):
                names = {id(p): name for name, p in self._model.named_parameters()}
                known = {id(p) for p in self._listed}
                new = [names.get(id(p), f"one of shape {tuple(p.shape)}") for p in listed if id(p) not in known]
                raise errors.FailedPrecondition(
                    f"the optimizer's parameters are others than at attach (add_param_group?){': ' * bool(new)}{_first(new)}. "
                    "attach comes after the last change: a parameter that is trained later is given to the optimizer before, and is frozen until then"
                )
        for p in self._fixed:
            if p.requires_grad:
                self._refuse_unfrozen()
        if (sum(map(len, self._dicts)) != len(self._held)
                or not all(map(operator.is_, itertools.chain.from_iterable(map(dict.values, self._dicts)), self._held))):
            self._check_new()

    def _refuse_unfrozen(self):
        names = [name for name, p in self.fixed if p.requires_grad]
        listed = {id(p) for p in self._listed}
        out = ("give them to the optimizer before attach, frozen as they are" if not all(id(p) in listed for p in self._fixed if p.requires_grad)
               else "attach(frozen=True) has frozen parameters averaged, too")
        raise errors.FailedPrecondition(
            f"{_first(names)}: frozen at attach, and not now (requires_grad), so each worker would train its own; {out}"
        )

    def _check_new(self):
        """Modules were changed. Pruning and the like keep the parameters under other names."""
        new = [name for name, p in self._model.named_parameters() if id(p) not in self._of_model and not any(p is q for q in self._listed)]
        if new:
            raise errors.FailedPrecondition(
                f"{_first(new)}: came into the model after attach, so each worker would have its own; attach comes after the last change of the model"
            )
        self._look_at_modules()


class Frozen:
    """Gradients of frozen parameters, where gradients are reduced. Zeros go in, and what comes out counts if another worker trains them.

    So a frozen parameter that nobody trains has no gradient, and weight decay leaves it as it is; and workers that unfreeze it
    some steps apart stay one model.
    """

    def __init__(self, parameters, views):
        self._parameters, self._views = parameters, views
        self._at, self._spans = [], []  # indices of those that are frozen, and their gradients, put together where they are neighbours
        self._clean = False  # all of these are zeros

    def begin(self):
        """Before a step: zeroes the gradients of those that are frozen now."""
        at = [i for i, p in enumerate(self._parameters) if not p.requires_grad]
        if at != self._at:
            self._at, self._spans, self._clean = at, self._put_together(at), False
        for i in at:
            self._parameters[i].grad = None
        if not self._clean:
            for span in self._spans:
                span.zero_()
        self._clean = True

    def end(self):
        """Before the optimizer: gives a gradient to those alone that others train."""
        for i in self._at:
            self._parameters[i].grad = None
        if self._spans and sum(span.count_nonzero() for span in self._spans):
            self._clean = False
            for i in self._at:
                if self._views[i].count_nonzero():
                    self._parameters[i].grad = self._views[i]

    def _put_together(self, at):
        spans = []  # [first view, begin, end] in elements
        for view in (self._views[i] for i in at):
            begin = view.storage_offset()
            if spans and spans[-1][0].dtype == view.dtype and spans[-1][2] == begin:
                spans[-1][2] = begin + view.numel()
            else:
                spans.append([view, begin, begin + view.numel()])
        return [view.as_strided((end - begin,), (1,), begin) for view, begin, end in spans]

"""What is in flight where. Occupancy is derived from the bookings, never kept beside them, so the
two cannot disagree."""

from itertools import count

from kairos.model import Instance, Request


class Ledger:
    """The instances, and the KV memory that each request in flight has booked on one of them."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self._instance_of: dict[str, str] = {}
        self._booked: dict[str, dict[str, int]] = {}  # instance id -> request id -> tokens
        self._bookings = count(1)
        self._last_booking: dict[str, int] = {}  # instance id -> number of the booking

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._instance_of

    def __len__(self) -> int:
        return len(self._instance_of)

    def join(self, instance: Instance) -> None:
        """Add an instance, or replace its limits; what is booked there stays booked."""
        self.instances[instance.id] = instance
        self._booked.setdefault(instance.id, {})

    def leave(self, instance_id: str) -> None:
        """Nothing more can be booked there; what runs there stays booked until it ends."""
        self.instances.pop(instance_id, None)
        self._last_booking.pop(instance_id, None)
        self._forget_if_empty(instance_id)

    def serving(self, model: str | None) -> list[Instance]:
        """Instances that serve the model (None: any), in the order in which they joined."""
        if model is None:
            return list(self.instances.values())
        return [i for i in self.instances.values() if model in i.models]

    def models(self) -> list[str]:
        """All models that are served at the moment."""
        return sorted({model for instance in self.instances.values() for model in instance.models})

    def instance_of(self, request_id: str) -> str | None:
        """Where the request is in flight."""
        return self._instance_of.get(request_id)

    def last_booking(self, instance_id: str) -> int:
        """The number of the latest booking there since the instance joined, as bookings are
        counted; 0: none."""
        return self._last_booking.get(instance_id, 0)

    def running(self, instance_id: str) -> int:
        """Requests in flight on the instance."""
        return len(self._booked.get(instance_id, ()))

    def booked_tokens(self, instance_id: str) -> int:
        return sum(self._booked.get(instance_id, {}).values())

    def has_room(self, instance: Instance, need_tokens: int) -> bool:
        """Whether a sequence slot is free, and memory for a request of this need.

        A need above the instance's whole memory counts as that memory: the expected length is a
        guess, and on an idle instance the request may as well try.
        """
        if self.running(instance.id) >= instance.max_num_seqs:
            return False
        if instance.kv_tokens is None:
            return True
        need = min(need_tokens, instance.kv_tokens)
        return self.booked_tokens(instance.id) + need <= instance.kv_tokens

    def book(self, request: Request, instance_id: str) -> None:
        """The instance need not have joined (yet): others book too, and their news may be late."""
        assert request.id not in self._instance_of
        self._instance_of[request.id] = instance_id
        self._booked.setdefault(instance_id, {})[request.id] = request.peak_kv_tokens
        self._last_booking[instance_id] = next(self._bookings)

    def release(self, request_id: str) -> None:
        """Give the booking back, if there is one: news may be late or repeated."""
        instance_id = self._instance_of.pop(request_id, None)
        if instance_id is not None:
            del self._booked[instance_id][request_id]
            self._forget_if_empty(instance_id)

    def _forget_if_empty(self, instance_id: str) -> None:
        if instance_id not in self.instances and not self._booked.get(instance_id, True):
            del self._booked[instance_id]
            self._last_booking.pop(instance_id, None)

"""Ledger of the calls in flight on each instance.

Occupancy is derived from bookings, so the two cannot disagree.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from statistics import median

from kairos.core.dispatcher.booking import Booking, learn_speed, service_us
from kairos.core.dispatcher.demand import Curves, Lengths, TypicalLatencies, limit_of
from kairos.core.dispatcher.in_flight import InFlightTable
from kairos.core.dispatcher.instance_health import InstanceHealth
from kairos.core.dispatcher.kv_retention import KvRetention
from kairos.core.dispatcher.prefixes import PrefixIndex
from kairos.core.dispatcher.prompts_under_way import PrefillsElsewhere, PromptsUnderWay
from kairos.core.dispatcher.served import BusyInstances, ServedInstances
from kairos.core.dispatcher.spare_calls import SpareCalls
from kairos.core.events import Finished, InstanceStatus
from kairos.core.model import EXPECTED_COMPLETION_TOKENS, Instance, Request

_PATIENCE = 3  # a prompt counts as computed after this many times its expected duration


class Ledger:
    """The instances, the requests in flight on them, and what facts report of both."""

    def __init__(self, lengths: Lengths) -> None:
        self.served = ServedInstances()
        self.instances = self.served.by_id
        self.prompts = PromptsUnderWay()
        self.prefixes = PrefixIndex()
        known = self.instances, self.prompts, self.prefixes
        self.prefills = PrefillsElsewhere(*known, self._mark_changed)
        self.retention = KvRetention()
        self.health = InstanceHealth()
        self.curves = Curves()
        self.lengths = lengths
        self.latencies = TypicalLatencies(lengths)
        self._flights: dict[str, InFlightTable] = {}  # by instance id
        # By instance id: change and time of the last `held_tokens`, and its result.
        self._held: dict[str, tuple[int, int, float]] = {}
        self._booking_of: dict[str, Booking] = {}
        self._further: dict[str, int] = {}  # sequences beyond one per request, by instance id
        self._speeds = self.served.speeds
        self.busy, self.spare = BusyInstances(self.prompts), SpareCalls()
        self.changes = 0
        # Instance id -> number of its latest change, in order of these.
        self._versions: dict[str, int] = {}
        self._bookings = count(1)
        self._last_booking: dict[str, int] = {}  # instance id -> number of its latest booking

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._booking_of

    def __len__(self) -> int:
        return len(self._booking_of)

    def add_instance(self, instance: Instance) -> None:
        """Add an instance, or replace its limits; its bookings stay."""
        self.served.add_instance(instance)
        self._flight_there(instance.id)
        self.prefixes.add_instance(instance)
        self._mark_changed(instance.id)

    def remove_instance(self, instance_id: str) -> None:
        """Remove an instance; its running calls stay booked until they end."""
        self.served.remove_instance(instance_id)
        self._last_booking.pop(instance_id, None)
        self.prefixes.remove_instance(instance_id)
        if instance_id in self._flights:  # their shared prefixes are no longer known
            self._flights[instance_id].all_changed()
        self.retention.forget_instance(instance_id)
        self.health.forget_instance(instance_id)
        self._held.pop(instance_id, None)
        self.busy.forget_instance(instance_id)
        self._forget_if_empty(instance_id)

    def instance_of(self, request_id: str) -> str | None:
        """Return where the request is in flight; None if it is not."""
        booking = self._booking_of.get(request_id)
        return None if booking is None else booking.instance_id

    def booking(self, request_id: str) -> Booking | None:
        return self._booking_of.get(request_id)

    def flight(self, instance_id: str) -> InFlightTable:
        """Return the calls in flight on a present instance."""
        return self._flights[instance_id]

    def version(self, instance_id: str) -> int:
        """Return a number that grows with each change of the instance's bookings.

        It also grows while the instance is away.
        """
        return self._versions.get(instance_id, 0)

    def changed_since(self, version: int) -> Iterator[str]:
        """Yield the ids of instances with a later change."""
        for instance_id, latest in reversed(self._versions.items()):
            if latest <= version:
                return
            yield instance_id

    def last_booking(self, instance_id: str) -> int:
        """Return the number of the latest booking since the instance joined; 0 without any."""
        return self._last_booking.get(instance_id, 0)

    def running(self, instance_id: str) -> int:
        """Return the number of sequences of the requests in flight on the instance."""
        flight = self._flights.get(instance_id)
        return len(flight) + self._further.get(instance_id, 0) if flight is not None else 0

    def takes_more(self, instance: Instance, at: int) -> bool:
        """Return whether the instance is not busy."""
        is_full = self.running(instance.id) >= instance.max_num_seqs
        return not is_full and not self.busy.is_spent(instance, at)

    def takes_more_in_us(self, instance: Instance, at: int) -> float:
        """Return the expected time until `takes_more`; 0 if it does now."""
        if self.takes_more(instance, at):
            return 0.0
        speed, running = self._speeds[instance.id], self.running(instance.id)
        wait_us = speed.compute_us(self.prompts.computing(instance.id, at)[0])
        if running >= instance.max_num_seqs:  # answers end one after the other
            left = EXPECTED_COMPLETION_TOKENS / 2 * speed.token_us(running)
            wait_us = max(wait_us, left / running)
        return wait_us

    def held_tokens(self, instance_id: str, at: int) -> float:
        """Return the KV tokens that calls use there now, as far as known.

        These are prompts, with each shared stretch counted once, answers so far, and half an
        unfilled block per call.
        """
        known = self._held.get(instance_id)
        if known is not None and known[0] == self.changes and known[1] == at:
            return known[2]
        flight = self._flights[instance_id]
        tokens = flight.prompt_tokens + flight.generated_tokens(at, self.token_us(instance_id))
        tokens -= self.shared_tokens(instance_id)
        tokens += len(flight) * self.unfilled_tokens(instance_id)
        self._held[instance_id] = self.changes, at, tokens
        return tokens

    def unfilled_tokens(self, instance_id: str) -> float:
        """Return the mean tokens that a call leaves free in its last block there."""
        instance = self.instances.get(instance_id)
        return (instance.block_size - 1) / 2 if instance is not None else 0.0

    def shared_tokens(self, instance_id: str) -> float:
        """Return the prompt tokens that calls there share, counting all copies but one.

        Reported prompt lengths may disagree, so at most all prompts but the longest.
        """
        shared = self.prefixes.shared_tokens(instance_id)
        flight = self._flights[instance_id]
        if not shared or len(flight) < 2:
            return 0.0
        most = flight.prompt_tokens - flight.longest_prompt
        return min(most, shared)

    def token_us(self, instance_id: str) -> float:
        """Return the time per answer token on the instance under its present load."""
        speed = self._speeds.get(instance_id)
        return speed.token_us(self.running(instance_id)) if speed is not None else 1e12

    def book(self, request: Request, instance_id: str, at: int) -> float:
        """Book a request on an instance, and return its expected cost in µs (`service_us`).

        The instance need not have joined yet: other balancers book too, and facts may be late.
        """
        assert request.id not in self._booking_of
        self._release_context(request.id)
        cached = self.prefixes.begin_use(request, instance_id, at)
        booking = self._booking_of[request.id] = Booking(request, instance_id, at, cached)
        speed = self._speeds.get(instance_id)
        computed = request.prompt_tokens - cached
        prefill_us = speed.prefill_us(computed) if speed is not None else 0
        until = at + int(_PATIENCE * prefill_us)
        known = self.lengths.completion_tokens(request)
        instance = self.instances.get(instance_id)
        if instance is not None and speed is not None:
            answer = request.completion_tokens if known is None else known.mean
            booking.computed, booking.beside = computed, self.running(instance_id)
            booking.computing_us = speed.computing_us(prefill_us, booking.beside)
            took_us = self.lengths.call_us(request)
            lengths = request.prompt_tokens, cached, answer
            booking.charged_us = service_us(booking, instance, speed, took_us, lengths)
        self._flight_there(instance_id).add(
            request.id,
            curve=self.curves.lock_row(self.lengths.kind(request), request, known),
            prompt=request.prompt_tokens,
            begun_at=at,
            lasts_us=self.latencies.typical_us(request),
            first_at=at + int(prefill_us),
            grows_from=until,
            limit=limit_of(request),
        )
        if request.sequences > 1:
            self._further[instance_id] = self._further.get(instance_id, 0) + request.sequences - 1
        self.prompts.add_prompt(instance_id, request.id, computed, until)
        self.spare.count_call(request, instance_id)
        self._last_booking[instance_id] = next(self._bookings)
        self._mark_changed(instance_id)
        return booking.charged_us

    def _flight_there(self, instance_id: str) -> InFlightTable:
        flight = self._flights.get(instance_id)
        if flight is None:
            flight = self._flights[instance_id] = InFlightTable()
        return flight

    def curve_of(self, request: Request) -> int:
        """Return the row of `curves` for a request that has not begun."""
        known = self.lengths.completion_tokens(request)
        return self.curves.row(self.lengths.kind(request), request, known)

    def record_first_token(self, request_id: str, at: int) -> None:
        booking = self._booking_of.get(request_id)
        if booking is not None and booking.first_token_at is None:
            booking.first_token_at = at
            self._record_length(booking, max(1, booking.generated), at)
            self._mark_changed(booking.instance_id)

    def record_progress(self, completion_tokens: Mapping[str, int], at: int) -> None:
        """Record the reported lengths of answers. A lower count than before is late and ignored."""
        token_us: dict[str, list[float]] = {}  # by instance id, of each answer
        for request_id, tokens in completion_tokens.items():
            booking = self._booking_of.get(request_id)
            if booking is None or tokens < booking.generated:
                continue
            there = token_us.setdefault(booking.instance_id, [])
            if 0 < booking.generated < tokens:
                took_us = at - self._flights[booking.instance_id].length_recorded_at(request_id)
                there.append(took_us / (tokens - booking.generated))
            self._record_length(booking, tokens, at)
        for instance_id, found in token_us.items():
            self._mark_changed(instance_id)
            if found and (speed := self._speeds.get(instance_id)) is not None:
                # The median, since some answers are held up.
                speed.token_took(median(found), self.running(instance_id))

    def _record_length(self, booking: Booking, tokens: int, at: int) -> None:
        booking.generated = tokens
        self.prompts.remove_prompt(booking.instance_id, booking.request.id)
        if self.prefills:
            self.prefills.finish_prefill(booking.request.id)
        self._flights[booking.instance_id].record_length(booking.request.id, tokens, at)

    def record_status(self, status: InstanceStatus, at: int) -> None:
        instance = self.instances.get(status.instance_id)
        says_nothing = status == InstanceStatus(status.instance_id)  # it only shows presence
        if instance is not None and not says_nothing:
            booked = self.held_tokens(instance.id, at)
            silent = self.prompts.requests(instance.id)  # calls without a reported token
            unheard = sum(self._booking_of[each].request.prompt_tokens for each in silent)
            held = max(0.0, booked - unheard), booked
            self.health.record_report(status, instance, held, self.running(instance.id), at)

    def release_booking(self, request_id: str, at: int, finished: Finished | None = None) -> float:
        """Release a booking, if there is one: facts may be late or repeated.

        Returns:
            By how much the call cost more than was expected, in µs of the instance.
        """
        booking = self._booking_of.pop(request_id, None)
        if booking is None:
            self._release_context(request_id)
            return 0.0
        instance_id = booking.instance_id
        speed, instance = self._speeds.get(instance_id), self.instances.get(instance_id)
        if finished is not None and speed is not None:
            learn_speed(speed, booking, finished, self.running(instance_id), at)
        lengths = booking.lengths(finished)
        answer, more_us = lengths[2], 0.0
        if instance is not None and speed is not None:
            took_us = at - booking.at
            more_us = service_us(booking, instance, speed, took_us, lengths) - booking.charged_us
        self._flights[instance_id].remove(request_id, answer)
        self._release_further(booking.request, instance_id)
        self.prompts.remove_prompt(booking.instance_id, booking.request.id)
        self.curves.unlock_row(request_id)
        self.spare.uncount_call(booking.request, instance_id, at)
        cached = finished.cached_tokens if finished is not None else None
        if self.prefills:
            cached = self.prefills.forget_prefill(request_id, cached, at)
        self.prefixes.end_use(booking.request, instance_id, answer, cached, at)
        if finished is not None and instance is not None and instance.prefix_caching:
            context = booking.request.prompt_tokens + answer
            fill_us = self._speeds[instance_id].compute_us(instance.kv_tokens or 0)
            self.retention.retain_context(booking.request, instance, context, fill_us, at)
        if not self.running(instance_id):
            self.health.end_suspension(instance_id)
        self._mark_changed(instance_id)
        self._forget_if_empty(instance_id)
        return more_us

    def _release_further(self, request: Request, instance_id: str) -> None:
        if request.sequences > 1:
            left = self._further.pop(instance_id) - (request.sequences - 1)
            if left:
                self._further[instance_id] = left

    def _release_context(self, request_id: str) -> None:
        instance_id = self.retention.release_context(request_id)
        if instance_id is not None:
            self._mark_changed(instance_id)

    def _mark_changed(self, instance_id: str) -> None:
        self.changes += 1
        self._versions.pop(instance_id, None)
        self._versions[instance_id] = self.changes
        instance = self.instances.get(instance_id)
        if instance is not None:
            self.busy.update_instance(instance, self.running(instance_id))

    def _forget_if_empty(self, instance_id: str) -> None:
        if instance_id not in self.instances and not self.running(instance_id):
            for known in (self._flights, self._held, self._last_booking, self._versions):
                known.pop(instance_id, None)
            self.prompts.forget_instance(instance_id)
            self.served.forget_speed(instance_id)
            self.spare.forget_instance(instance_id)

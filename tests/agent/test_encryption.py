"""Encrypted volumes on a host: whose key, when it is asked for, how long a secret is kept."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host_agent.clock import StopClock
from host_agent.leftovers import LeftoversRelease
from host_agent.locks import Locks
from host_agent.shared.contract.lane import Lane, LaneSide
from host_agent.shared.contract.messages import ErrorKind, GuestOrder, PowerState, Release, Verb
from host_agent.shared.contract.ports import PortError
from host_agent.shared.platform import masking
from host_agent.storage.keys import NO_KEYS
from tests.agent.bench import ATTACH, DETACH, PASSPHRASE, Bench
from tests.doubles.host_checks import broken_invariants, connected_paths, lose_secrets

#: Calls that change nothing.
LOOKS = {"guests.disk", "guests.survey", "brick.connector"}


@pytest.fixture
def bench() -> Bench:
    return Bench(encrypted=True)


def secrets(bench: Bench) -> set[str]:
    return set(bench.store.read()["secrets"])


def refused(bench: Bench, lane: Lane, *verbs: Verb, **context: Any) -> PortError:
    with pytest.raises(PortError) as raised:
        bench.run(lane, *verbs, context=bench.context(**context))
    return raised.value


def test_secret_is_there_before_the_disk_and_goes_after_it(bench: Bench) -> None:
    lane = bench.lane()
    bench.run(lane, *ATTACH)
    assert secrets(bench) == {lane.volume_id}
    bench.run(lane, *DETACH)
    assert secrets(bench) == set()
    assert broken_invariants(bench.store) == []
    order = [call for call in bench.calls if call.split(".")[0] in {"keys", "guests", "brick"}]
    order = [call for call in order if call not in LOOKS]
    attached = ["keys.passphrase", "guests.keep_secret", "brick.connect", "brick.format_luks"]
    # LP 1642628: the guest lets go first
    detached = ["guests.unplug", "brick.disconnect", "guests.drop_secret"]
    assert order == [*attached, "guests.plug", *detached]


def test_plain_volume_needs_no_key() -> None:
    bench = Bench()
    lane = bench.attached()
    bench.run(lane, *DETACH)
    assert not [call for call in bench.calls if "secret" in call or "keys" in call]


def test_disk_that_is_told_names_the_secret_and_holds_none(bench: Bench) -> None:
    outputs = bench.run(bench.lane(), Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT)
    assert outputs["disk"]["encryption"]["format"] == "luks"
    assert PASSPHRASE not in str(outputs)
    assert PASSPHRASE not in str(bench.records)
    assert PASSPHRASE not in str(bench.store.read())


class Barbican:
    """Has a key that nobody has seen before."""

    def passphrase(self, key_id: str) -> str:
        return "ba4b1ca4" * 8


def test_key_is_masked_wherever_it_turns_up(bench: Bench) -> None:
    keys = Barbican()
    bench.run(bench.lane(), *ATTACH, context=bench.context(keys=keys))
    assert keys.passphrase("") not in masking.mask(f"libvirt said {keys.passphrase('')}")


@pytest.mark.parametrize("provider", ["plain", "luks2", "nova.volume.encryptors.Own"])
def test_provider_that_qemu_lacks_is_refused_before_connecting(bench: Bench, provider: str) -> None:
    lane = bench.lane()
    bench.model.volumes[lane.volume_id].provider = provider
    error = refused(bench, lane, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT)
    assert (error.kind, error.code) == (ErrorKind.FINAL, "encryption_not_supported")
    assert provider in error.message
    _nothing_is_left(bench)


def test_luks_by_the_name_of_its_class_is_luks(bench: Bench) -> None:
    lane = bench.lane()
    bench.model.volumes[lane.volume_id].provider = "nova.volume.encryptors.luks.LuksEncryptor"
    bench.run(lane, *ATTACH)
    assert secrets(bench) == {lane.volume_id}


def test_host_without_a_key_manager_refuses_before_connecting(bench: Bench) -> None:
    verbs = (Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT)
    error = refused(bench, bench.lane(), *verbs, keys=NO_KEYS)
    assert (error.kind, error.code) == (ErrorKind.FINAL, "no_key_manager")
    assert "[keys]" in error.message
    _nothing_is_left(bench)


def _nothing_is_left(bench: Bench) -> None:
    assert (connected_paths(bench.store), bench.records, secrets(bench)) == (set(), {}, set())


@pytest.mark.parametrize("failing", ["guests.keep_secret", "brick.connect", "brick.format_luks"])
def test_lp1812945_what_failed_at_encryption_is_let_go_of_without_a_key(
    bench: Bench, failing: str
) -> None:
    lane = bench.lane()
    bench.faults.replace([{"call": failing, "do": "fail", "status": 400}])
    assert refused(bench, lane, *ATTACH).kind is ErrorKind.FINAL
    bench.calls.clear()
    bench.run(lane, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    _nothing_is_left(bench)
    assert "keys.passphrase" not in bench.calls


def test_undoing_a_copy_asks_for_no_key(bench: Bench) -> None:
    lane, new = _swap(bench)
    connected = bench.run(new, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT)
    bench.calls.clear()
    undone = replace(new, disk=connected["disk"])
    verbs = (Verb.DISK_COPY_ABORT, Verb.VOLUME_DISCONNECT, Verb.ATTACHMENT_DELETE)
    assert bench.run(undone, *verbs) == {}
    assert "keys.passphrase" not in bench.calls
    assert secrets(bench) == {lane.volume_id}
    assert broken_invariants(bench.store) == []


def _swap(bench: Bench) -> tuple[Lane, Lane]:
    """An attached volume, and another that is to take its place."""
    lane = bench.attached()
    new = bench.lane(lane.server_id)
    old = LaneSide(volume_id=lane.volume_id, attachment_id=lane.attachment_id)
    return lane, replace(new, serial=lane.volume_id, other=old)


def test_volume_that_takes_another_ones_id_keeps_its_secret(bench: Bench) -> None:
    """Cinder's migration: the guest is defined with the secret's uuid, a host may lose power."""
    lane, new = _swap(bench)
    bench.run(new, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT, Verb.DISK_COPY)
    bench.run(replace(lane, other=_side(new)), Verb.VOLUME_DISCONNECT)
    assert secrets(bench) == {new.volume_id}
    migrated = replace(new, volume_id=lane.volume_id, other=None)
    lose_secrets(bench.store)
    bench.guests.stop(lane.server_id, force=True)
    order = GuestOrder(server_id=lane.server_id, lanes=(migrated,))
    assert bench.order(Verb.GUEST_START, order) == {"power_state": "running"}
    bench.run(migrated, Verb.DISK_UNPLUG, Verb.VOLUME_DISCONNECT)
    _nothing_is_left(bench)


def _side(lane: Lane) -> LaneSide:
    return LaneSide(volume_id=lane.volume_id, attachment_id=lane.attachment_id)


@pytest.mark.parametrize("plain", [0, 1])
def test_swap_between_plain_and_encrypted_volumes(bench: Bench, plain: int) -> None:
    volumes = [  # the second larger by more than a head of LUKS
        bench.model.add_volume(driver="iscsi", encrypted=n != plain, size=n + 1).id
        for n in range(2)
    ]
    lane = bench.attached(volume_id=volumes[0])
    new = replace(bench.lane(lane.server_id, volumes[1]), serial=lane.volume_id, other=_side(lane))
    bench.run(new, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT, Verb.DISK_COPY)
    bench.run(replace(lane, other=_side(new)), Verb.VOLUME_DISCONNECT)
    assert secrets(bench) == {volumes[1]} - {volumes[plain]}
    assert broken_invariants(bench.store) == []


def test_secret_goes_with_the_last_user_on_the_host(bench: Bench) -> None:
    """S3: one key for all connections."""
    first, second = bench.two_users()
    assert secrets(bench) == {first.volume_id}
    for lane, left in ((first, {first.volume_id}), (second, set())):
        bench.run(lane, *DETACH)
        del bench.users.by_attachment[lane.attachment_id or ""]
        assert secrets(bench) == left
        assert broken_invariants(bench.store) == []


@pytest.mark.parametrize("verb", [Verb.GUEST_START, Verb.GUEST_SPAWN])
def test_lp1724573_guest_starts_after_its_host_has_lost_everything(
    bench: Bench, verb: Verb
) -> None:
    """Also LP 1905701: the key is asked for by the host's own right, not the user's."""
    lane = bench.attached(bench.server(PowerState.SHUTDOWN))
    with bench.store.edit() as state:
        state.update(connected={}, secrets={})
    [guest] = bench.guests.inventory()
    order = GuestOrder(server_id=lane.server_id, lanes=(lane,), definition=guest.definition)
    assert bench.order(verb, order) == {"power_state": "running"}
    assert broken_invariants(bench.store) == []


def test_daemon_that_was_restarted_between_two_runs_is_given_the_secret_again(
    bench: Bench,
) -> None:
    lane = bench.lane()
    bench.run(lane, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT)
    lose_secrets(bench.store)
    bench.run(lane, Verb.DISK_PLUG)
    assert broken_invariants(bench.store) == []


def test_daemon_that_is_restarted_within_a_run_makes_it_be_tried_again(bench: Bench) -> None:
    lane, context = bench.lane(), bench.context()
    bench.run(lane, Verb.ATTACHMENT_UPDATE, Verb.VOLUME_CONNECT, context=context)
    lose_secrets(bench.store)
    with pytest.raises(PortError) as raised:
        bench.run(lane, Verb.DISK_PLUG, context=context)
    assert (raised.value.kind, raised.value.code) == (ErrorKind.RETRYABLE, "secret_missing")
    bench.run(lane, Verb.DISK_PLUG)


def test_fenced_host_forgets_the_secrets_of_what_is_not_its_any_more(
    bench: Bench, tmp_path: Path
) -> None:
    lane, stays = bench.attached(), bench.attached()
    clock = StopClock(threading.Event())
    release = Release(guests=(lane.server_id,), attachments=(lane.attachment_id or "",))
    LeftoversRelease(bench.world(), Locks(tmp_path), clock).clear(release)
    assert secrets(bench) == {stays.volume_id}
    assert broken_invariants(bench.store) == []

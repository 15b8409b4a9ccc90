"""The program that powers a host off by Redfish, against a simulated BMC over TLS."""

from __future__ import annotations

import base64
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ledger.core.after_fence import run_hook
from ledger.upkeep import power_off as program
from ledger.upkeep.power_off import Bmc, BmcRefusedError, Redfish, UnclearError, power_off
from tests.authority import Authority, Pair
from tests.doubles.served import Handler, served
from tests.tokens import write_private

SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/Elsewhere.Reset"
SECRET = "s\u20accret"
LOGIN = "Basic " + base64.b64encode(f"fence:{SECRET}".encode()).decode()


@dataclass
class SimulatedBmc:
    """`says`: what it answers to each look, the last one for good; `asked`: what it was asked.

    `status`: in the place of its answers, with a Location of its own.  `cut`: so many times it
    hangs up instead of answering, or within its answer if it says `half`.
    """

    says: list[str] = field(default_factory=lambda: ["On", "Off"])
    status: int = 0
    cut: int = 0
    half: bool = False
    reset_status: int = 204
    target: str = RESET
    asked: list[str] = field(default_factory=list)
    url: str = ""
    told: bool = False
    go_on: threading.Event = field(default_factory=threading.Event)
    hangs: bool = False

    def next(self) -> str:
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]


class _Bmc(Handler):
    bmc: SimulatedBmc

    def respond(self) -> None:
        bmc, sent = self.bmc, self.body()
        bmc.asked.append(f"{self.command} {self.path} {sent.decode()}".strip())
        if bmc.hangs:
            bmc.go_on.wait()
            self.close_connection = True
        elif bmc.cut:
            bmc.cut -= 1
            if bmc.half:
                self.answer(200, Transfer_Encoding="chunked")
            self.close_connection = True
        elif bmc.status:
            self.answer(bmc.status, Location=f"{bmc.url}/elsewhere")
        elif self.headers["Authorization"] != LOGIN:
            self.answer(401)
        elif self.command == "POST":
            bmc.told = True
            self.answer(bmc.reset_status)
        else:
            self.answer(200, self.shown())

    def shown(self) -> bytes:
        actions = {"#ComputerSystem.Reset": {"target": self.bmc.target}}
        state = self.bmc.next() if self.bmc.told else "On"
        return json.dumps({"PowerState": state, "Actions": actions}).encode()


@contextmanager
def running_bmc(pair: Pair) -> Iterator[SimulatedBmc]:
    bmc = SimulatedBmc()
    with served(type("Bmc", (_Bmc,), {"bmc": bmc}), pair) as bmc.url:
        try:
            yield bmc
        finally:
            bmc.go_on.set()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("bmc") / "ca")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("IP:127.0.0.1")


@pytest.fixture
def bmc(pair: Pair) -> Iterator[SimulatedBmc]:
    with running_bmc(pair) as running:
        yield running


@dataclass
class Time:
    """Nobody waits for it: it goes on when somebody waits."""

    now: float = 1000.0
    waits: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)

    def clock(self) -> float:
        return self.now


def settings(bmc: SimulatedBmc, authority: Authority, home: Path, secret: str = SECRET) -> Bmc:
    password = write_private(home / "password", f"{secret}\n")
    ca_file = str(authority.certificate)
    return Bmc(system=bmc.url + SYSTEM, user="fence", password_file=str(password), ca_file=ca_file)


@pytest.fixture
def redfish(bmc: SimulatedBmc, authority: Authority, tmp_path: Path) -> Redfish:
    return Redfish(settings(bmc, authority, tmp_path))


def off(redfish: Redfish) -> tuple[str, Time]:
    time = Time()
    return power_off(redfish, time.wait, time.clock), time


def looks(bmc: SimulatedBmc) -> int:
    return sum(each.startswith("GET") for each in bmc.asked)


def resets(bmc: SimulatedBmc) -> int:
    return sum(each.startswith("POST") for each in bmc.asked)


def test_it_is_told_and_has_to_say_off_twice_with_a_pause_between(
    bmc: SimulatedBmc, redfish: Redfish
) -> None:
    bmc.says = ["On", "PoweringOff", "Off"]
    said, time = off(redfish)
    assert said == "the BMC was told ForceOff, and has said Off twice, 5 s apart"
    assert bmc.asked[1] == f'POST {RESET} {{"ResetType": "ForceOff"}}'
    assert time.waits == [1.0, 1.0, program.PAUSE_S]
    assert (resets(bmc), looks(bmc)) == (1, 5)


def test_one_that_says_off_and_then_on_again_is_not_believed(
    bmc: SimulatedBmc, redfish: Redfish
) -> None:
    bmc.says = ["Off", "On", "Off", "On", "Off"]
    _, time = off(redfish)
    assert time.waits.count(program.PAUSE_S) == 3, "each Off began anew"
    bmc.says = ["Off", "On"] * 200
    with pytest.raises(UnclearError, match="it was not seen off; last: O"):
        off(redfish)
    assert resets(bmc) > 2, "it is told again"


def test_one_that_says_off_before_it_was_told_is_told_all_the_same(
    bmc: SimulatedBmc, redfish: Redfish
) -> None:
    bmc.told, bmc.says, bmc.reset_status = True, ["Off"], 409
    off(redfish)
    assert (resets(bmc), looks(bmc)) == (1, 3)


def test_one_that_stays_on_is_told_again_until_the_deadline(
    bmc: SimulatedBmc, redfish: Redfish
) -> None:
    bmc.says = ["On"]
    with pytest.raises(UnclearError, match="within 50 s it was not seen off; last: On"):
        off(redfish)
    assert resets(bmc) == 4


def test_one_that_hangs_up_is_asked_again(bmc: SimulatedBmc, redfish: Redfish) -> None:
    for bmc.half in (False, True):
        bmc.cut, bmc.says = 3, ["Off"]
        off(redfish)
        assert resets(bmc) == 1
        bmc.asked.clear()


def test_one_that_does_not_answer_is_unclear(
    bmc: SimulatedBmc, redfish: Redfish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ANSWER_S", 0.1)
    bmc.hangs = True
    with pytest.raises(UnclearError, match="no answer"):
        off(redfish)
    assert looks(bmc) > 10, "until the deadline"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_one_that_sends_us_elsewhere_is_not_followed(
    status: int, bmc: SimulatedBmc, redfish: Redfish
) -> None:
    bmc.status = status
    with pytest.raises(BmcRefusedError, match="sends us elsewhere"):
        off(redfish)
    assert len(bmc.asked) == 1


def test_one_that_names_another_machine_for_its_action_is_told_itself(
    bmc: SimulatedBmc, redfish: Redfish
) -> None:
    for target in ("https://203.0.113.9/Reset", "//203.0.113.9/Reset"):
        bmc.target = target
        off(redfish)
        [told] = [each for each in bmc.asked if each.startswith("POST")]
        assert told.startswith(f"POST {SYSTEM}/Actions/ComputerSystem.Reset ")
        bmc.asked.clear()


def test_one_that_refuses_our_word_is_asked_once(
    bmc: SimulatedBmc, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(BmcRefusedError, match="401 to our user"):
        off(Redfish(settings(bmc, authority, tmp_path, secret="wrong")))
    assert len(bmc.asked) == 1


def test_one_that_cannot_prove_who_it_is_learns_no_password(
    bmc: SimulatedBmc, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(BmcRefusedError, match="cannot prove who it is"):
        off(Redfish(settings(bmc, other, tmp_path)))
    assert bmc.asked == []


def test_one_that_answers_something_else_is_unclear(bmc: SimulatedBmc, redfish: Redfish) -> None:
    bmc.status = 200
    with pytest.raises(UnclearError, match="it answers 200, and shows no system"):
        off(redfish)


def test_it_is_a_program_for_the_settings(
    bmc: SimulatedBmc, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the service runs it; what it says last becomes the evidence."""
    bmc.says = ["On"]
    found = settings(bmc, authority, tmp_path)
    file = tmp_path / "bmcs.toml"
    rows = "".join(f'{name} = "{value}"\n' for name, value in vars(found).items())
    wrong = '[compute-3]\nsystem = 3\nuser = "x"\npassword_file = "x"\n'
    file.write_text(f"[compute-1]\n{rows}{wrong}")
    monkeypatch.setattr(program, "PAUSE_S", 0.01)
    for host, says, code, text in (
        ("compute-1", "Off", 0, "host compute-1: the BMC was told ForceOff"),
        ("compute-2", "Off", 2, "no BMC was asked, because the settings are wrong"),
        ("compute-3", "Off", 2, "no BMC was asked, because the settings are wrong"),
    ):
        bmc.says = [says]
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"host": host})))
        out = io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        assert program.main([str(file)]) == code
        assert out.getvalue().startswith(text)


def test_it_runs_without_the_services_environment(tmp_path: Path) -> None:
    file = tmp_path / "bmcs.toml"
    file.write_text("")
    argv = (sys.executable, "-m", "ledger.upkeep.power_off", str(file))
    ended = run_hook(argv, b'{"host": "compute-1"}', 60.0, threading.Event())
    assert (ended.code, "KeyError('compute-1')" in ended.said) == (2, True)


def test_a_bmc_is_asked_over_tls_alone() -> None:
    with pytest.raises(ValueError, match="begins with https"):
        Bmc(system="http://192.0.2.1/redfish/v1/Systems/1", user="x", password_file="/x")

"""The whole service over TLS, with the agent's own client and the command line."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from host_agent.line.client import LedgerClient, LinkError, LinkSettings
from host_agent.line.credentials import Files
from host_agent.shared.platform.tls import Watched
from ledger import config
from ledger.auth import renewal
from ledger.auth.renewal import SettingsReload
from ledger.bootstrap import Running, running
from ledger.cli import shell
from ledger.http.probes import health
from tests.authority import Authority, replace
from tests.doubles.running_cinder import RunningCinder, running_cinder
from tests.service.api_world import eventually
from tests.tokens import token_of

REGISTRATION = {"service_version": 3, "capabilities": {}, "guests": []}
POLL = "/v1/hosts/compute-1/commands?after=0&epoch=0"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "LOOK_S", 0.01)
    defaults = {**(Watched.__init__.__kwdefaults__ or {}), "every_s": 0.0}
    monkeypatch.setattr(Watched.__init__, "__kwdefaults__", defaults)
    monkeypatch.setattr(health, "ANSWER_AGE_S", 0.0)


class Settings:
    """The service's file, whose tokens a test changes."""

    def __init__(self, home: Path, dsn: str, cinder: RunningCinder) -> None:
        self.authority = Authority(home / "ca")
        self._file, self.revoking = home / "ledger.toml", home / "clients.pem"
        replace(self.revoking, self.authority.certificate.read_bytes())
        pair = self.authority.pair("localhost", "IP:127.0.0.1")
        self._text = (
            f'database_url = "{dsn}"\nauth = "tokens"\n[cinder]\nendpoint = "{cinder.endpoint}"\n'
            f'[listen]\nport = 0\nclient_ca_file = "{self.revoking}"\n'
            f'certificate_file = "{pair.certificate}"\nkey_file = "{pair.key}"\n'
        )

    def write(self, *tokens: str, more: str = "") -> None:
        """`tokens` are names: agent-..., who are agents of compute-1, or operators."""
        text = self._text
        for name in tokens:
            role, host = ("agent", '\nhost = "compute-1"') if "agent" in name else ("operator", "")
            text += f'[[tokens]]\nname = "{name}"\ntoken = "{token_of(name)}"\nuser_id = "u"\n'
            text += f'project_id = "p"\nroles = ["{role}"]{host}\n'
        replace(self._file, (text + more).encode())

    def load(self) -> config.Settings:
        return config.load(self._file, {})

    def again(self) -> SettingsReload:
        return SettingsReload(Watched(self._file, every_s=0.0), self.load)


@asynccontextmanager
async def serving(home: Path, dsn: str) -> AsyncIterator[tuple[Running, Settings]]:
    with running_cinder() as cinder:
        settings = Settings(home, dsn, cinder)
        settings.write("ada", "bob", "agent-old")
        again = settings.again()
        async with running(settings.load(), dsn, again) as service:
            yield service, settings


async def test_the_agent_and_the_command_line_speak_tls(
    tmp_path: Path,
    database_url: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(tmp_path, database_url) as (service, settings):
        assert service.url.startswith("https://127.0.0.1:")
        ca, pair = str(settings.authority.certificate), settings.authority.pair("compute-1")
        files = Files(ca=ca, certificate=str(pair.certificate), key=str(pair.key))
        agent = LedgerClient(LinkSettings(url=service.url, token="", host="compute-1", files=files))
        answer = await asyncio.to_thread(agent.call, "PUT", "", REGISTRATION)
        assert answer[0] == 200

        async def listed(*more: str) -> int:
            words = ("--url", service.url, "--token", token_of("ada"), *more, "host", "list")
            return await asyncio.to_thread(shell.main, words)

        async def shows() -> bool:
            assert await listed("--cacert", ca) == 0
            return "compute-1" in capsys.readouterr().out

        await eventually(shows, "the host is listed")
        for believed, code, said in (
            ((), 1, "is not taken: "),
            (("--cacert", str(tmp_path / "none")), 2, "There is no file"),
        ):
            assert await listed(*believed) == code
            complaint = capsys.readouterr().err
            assert said in complaint
            assert "--cacert FILE, or LEDGER_CACERT" in complaint
        replace(settings.revoking, settings.authority.revoked(pair))
        caplog.set_level(logging.INFO)
        told: list[str] = []

        async def refused() -> bool:
            try:
                await asyncio.to_thread(agent.call, "GET", "/commands?after=0&epoch=0&wait_s=0")
            except LinkError as error:
                told.append(str(error))
            # A reset of the connection may overtake the alert that says why.
            said = any("this host's certificate" in each for each in told)
            return said and "certificate revoked" in caplog.text

        await eventually(refused, "the revoked certificate is refused, and both sides say so")


async def test_tokens_are_renewed_while_the_service_runs(tmp_path: Path, database_url: str) -> None:
    async with serving(tmp_path, database_url) as (service, settings):
        trusting = ssl.create_default_context(cafile=str(settings.authority.certificate))
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with aiohttp.ClientSession(service.url, connector=connector) as http:

            async def status(name: str) -> int:
                path = "/v1/hosts/compute-1/commands?after=0&epoch=0&wait_s=0"
                path = path if "agent" in name else "/v1/hosts"
                async with http.get(path, headers={"X-Auth-Token": token_of(name)}) as answer:
                    return answer.status

            async def warnings() -> list[str]:
                async with http.get("/readyz") as answer:
                    return list((await answer.json())["warnings"])

            stream = await http.get("/v1/events/stream", headers={"X-Auth-Token": token_of("bob")})
            assert (stream.status, await status("agent-new")) == (200, 401)

            settings.write("ada", "bob", "agent-old", "agent-new")

            async def both() -> bool:
                return await status("agent-new") != 401

            await eventually(both, "the second token of the agent is good")
            assert await status("agent-old") == await status("agent-new"), "and the first still is"

            settings.write("ada", "agent-new", more="this is no TOML")

            async def told() -> bool:
                return any("changed settings are not taken" in each for each in await warnings())

            await eventually(told, "that the file is broken is told")
            assert [await status(name) for name in ("ada", "bob")] == [200, 200]
            assert not stream.content.at_eof()

            settings.write("ada", "agent-new", more="\n[limits]\nstreams_max = 7\n")

            async def taken() -> bool:
                return await status("bob") == await status("agent-old") == 401

            await eventually(taken, "tokens that are gone are good no more")
            with pytest.raises(aiohttp.ClientError):
                await stream.read()
            assert await status("ada") == 200
            assert any("restart for that" in each for each in await warnings())

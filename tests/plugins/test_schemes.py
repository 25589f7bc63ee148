"""Which broker a URL means."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ruststream_core.errors import ConfigError, PluginError
from ruststream_core.memory import MemoryBroker
from ruststream_core.plugins import EXTRAS, broker_from_url, load_scheme


def test_memory_is_found_like_any_other() -> None:
    """The built-in transport goes the way of all plugins, so that the way is always tried."""
    assert load_scheme("memory") is MemoryBroker
    assert repr(broker_from_url("memory://audit")) == "MemoryBroker('audit')"


@pytest.mark.parametrize("url", ["", "localhost", "//localhost", ":x"])
def test_a_url_needs_a_scheme(url: str) -> None:
    with pytest.raises(ConfigError, match="begins with a scheme"):
        broker_from_url(url)


@pytest.mark.parametrize("scheme", ["kafka", "redis", "rabbitmq", "amqps"])
def test_a_missing_plugin_names_the_command_that_brings_it(scheme: str) -> None:
    """The reader of this message wants to go on, not to search."""
    with pytest.raises(ConfigError) as caught:
        broker_from_url(f"{scheme}://user:secret@host")
    assert f'pip install "ruststream-core[{EXTRAS[scheme]}]"' in str(caught.value)
    assert "memory" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_unknown_scheme_shows_those_that_are_installed() -> None:
    with pytest.raises(ConfigError, match=r"no plugin for 'memroy' URLs.*Installed schemes: .*memory"):
        broker_from_url("memroy://")


def test_a_plugin_is_found_by_its_scheme(install: Any, broker_source: Any) -> None:
    install("acme-broker", broker_source("acme", "acmes"), ["acme", "acmes"])
    assert broker_from_url("acme://host").url == "acme://host"  # type: ignore[attr-defined]
    assert load_scheme("ACMES") is load_scheme("acme")


def test_only_what_a_url_names_is_imported(install: Any, broker_source: Any, loaded: Any) -> None:
    """A broken or slow plugin must not cost the services that do not use it."""
    used = install("acme-used", broker_source("used"), ["used"])
    other = install("acme-other", "raise SystemError('imported')", ["other"])
    load_scheme("used")
    assert loaded(used) is not None
    assert loaded(other) is None


def test_two_owners_of_a_scheme_are_both_named(install: Any, broker_source: Any) -> None:
    """Which one wins would depend on the order of folders."""
    install("acme-one", broker_source("acme"), ["acme"], version="1.0")
    install("acme-two", broker_source("acme"), ["acme"], version="2.0")
    with pytest.raises(ConfigError, match=r"acme-one 1.0.*and.*acme-two 2.0.*Uninstall"):
        load_scheme("acme")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "brings no broker for it: none"),
        ("BROKERS({})", "brings no broker for it"),
        ("BROKERS({'acme': object()})", "no Broker class"),
        ("BROKERS(1 / 0)", "ruststream_brokers failed: ZeroDivisionError"),
        ("BROKERS(['acme'])", "a mapping by name is expected"),
    ],
)
def test_a_broken_plugin_is_named_with_the_cause(install: Any, source: str, says: str) -> None:
    hook = "from ruststream_core.plugins import hookimpl\n@hookimpl\ndef ruststream_brokers():\n    return "
    if source.startswith("BROKERS"):
        source = hook + source.removeprefix("BROKERS")
    install("acme-broken", source, ["acme"])
    with pytest.raises(PluginError, match="acme-broken 1.0") as caught:
        load_scheme("acme")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("def ruststream_brokers(app): ...", "app"),
        ("def ruststream_broker(): ...", "ruststream_broker"),
    ],
)
def test_a_hook_that_pluggy_refuses_is_named_every_time(install: Any, function: str, says: str) -> None:
    """A misspelt hook would never be called, and a second attempt must not find half a plugin registered."""
    install("acme-wrong", f"from ruststream_core.plugins import hookimpl\n@hookimpl\n{function}\n", ["acme"])
    for _ in range(2):
        with pytest.raises(PluginError, match=f"(?s)acme-wrong.*{says}"):
            load_scheme("acme")


def test_importing_the_core_imports_no_plugin_machinery() -> None:
    """A service that hands over a broker object pays for none of it."""
    code = (
        "import sys, ruststream_core, ruststream_core.plugins\n"
        "print([m for m in ('pluggy', 'importlib.metadata', 'ruststream_core.memory') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

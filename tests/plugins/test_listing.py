"""What is installed, and what plugins bring besides brokers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ruststream_core.errors import ConfigError, PluginError
from ruststream_core.plugins import PluginInfo, list_plugins, load_codecs, load_command

HOOK = "from ruststream_core.plugins import hookimpl\n\n@hookimpl\ndef ruststream_{what}():\n    return {{{items}}}\n"


def named(scheme: str, *, load: bool = False) -> PluginInfo:
    (found,) = [plugin for plugin in list_plugins(load=load) if plugin.scheme == scheme]
    return found


def test_the_list_is_made_of_metadata_alone(install: Any, loaded: Any) -> None:
    """Listing must work where a plugin does not."""
    module = install("acme-broken", "1 / 0", ["acme"], version="3.1")
    assert named("acme") == PluginInfo(scheme="acme", distribution="acme-broken", version="3.1", module=module)
    assert named("acme").state == "not loaded"
    assert loaded(module) is None


def test_loading_says_what_is_wrong_and_goes_on(install: Any, broker_source: Any) -> None:
    """One broken plugin must not hide the others."""
    install("acme-broken", "1 / 0", ["broken"])
    install("acme-idle", "", ["idle"])
    install("acme-sound", broker_source("sound"), ["sound"])
    assert "ZeroDivisionError" in named("broken", load=True).state
    assert named("idle", load=True).state == "brings nothing named 'idle'"
    assert named("sound", load=True).state == "ok"
    assert named("memory", load=True).state == "ok"


def test_two_owners_are_listed_with_each_other(install: Any, broker_source: Any) -> None:
    install("acme-one", broker_source("acme"), ["acme"])
    install("acme-two", broker_source("acme"), ["acme"])
    errors = sorted(plugin.error or "" for plugin in list_plugins() if plugin.scheme == "acme")
    assert [("acme-one" in error, "acme-two" in error) for error in errors] == [(True, False), (False, True)]


def test_codecs_come_from_every_plugin_that_works(install: Any, caplog: pytest.LogCaptureFixture) -> None:
    install("acme-broken", "1 / 0", ["broken"])
    install("acme-codec", HOOK.format(what="codecs", items="'acme': dict"), ["acme"])
    with caplog.at_level(logging.WARNING, "ruststream"):
        assert load_codecs()["acme"] is dict
    assert any("acme-broken" in record.getMessage() for record in caplog.records)


def test_two_codecs_of_one_name_name_both_plugins(install: Any) -> None:
    for distribution in ("acme-one", "acme-two"):
        install(distribution, HOOK.format(what="codecs", items="'acme': dict"), [distribution])
    with pytest.raises(ConfigError, match=r"codec 'acme'.*acme-(one|two).*acme-(one|two)"):
        load_codecs()


def test_a_command_is_found_by_its_entry_point_first(install: Any, loaded: Any) -> None:
    """A command must not wait for the import of every client library."""
    install("acme-tool", HOOK.format(what="commands", items="'acme': len"), ["acme"])
    other = install("acme-other", "1 / 0", ["other"])
    assert load_command("acme")(["a", "b"]) == 2
    assert loaded(other) is None


def test_a_command_may_come_with_a_scheme_of_another_name(install: Any) -> None:
    install("acme-tool", HOOK.format(what="commands", items="'audit': len"), ["acme"])
    assert load_command("audit")([]) == 0


def test_an_unknown_command_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no command 'nonsense'"):
        load_command("nonsense")


def test_a_broken_command_is_named(install: Any) -> None:
    install("acme-tool", "1 / 0", ["acme"])
    with pytest.raises(PluginError, match="acme-tool"):
        load_command("acme")

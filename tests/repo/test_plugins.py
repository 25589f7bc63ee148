"""Every plugin has the same shape, and its metadata agrees with the core's."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

SHARED = ("version", "requires-python", "license", "license-files", "authors", "classifiers", "readme")
TRANSPORT = ("_plugin", "config", "_broker", "_subscription", "_publisher", "_convert", "errors")
# The measuring harness is a command, not a transport, and it drives the clients itself.
COMMANDS = {"bench"}
# What is imported with the plugin because it is no client: it does no I/O and loads in a millisecond.
EAGER = {"ruststream-core", "msgspec", "fastcrc"}


def test_shared_fields(name: str, core: dict[str, Any], plugin: dict[str, Any]) -> None:
    """A release of the repository is one version, one licence, one range of Pythons."""
    expected = {field: core["project"][field] for field in SHARED}
    assert {field: plugin["project"][field] for field in SHARED} == expected
    assert plugin["build-system"] == core["build-system"]
    assert plugin["project"]["name"] == f"ruststream-core-{name}"
    assert plugin["tool"]["hatch"]["build"] == {"only-include": [f"ruststream_core_{name}"]}


def test_pins_match(name: str, core: dict[str, Any], plugin: dict[str, Any]) -> None:
    """The extra and the plugin pin each other to one minor version; an extra never names another project."""
    pin = f"~={core['project']['version'].rpartition('.')[0]}.0"
    extra = Requirement(core["project"]["optional-dependencies"][name][0])
    assert (extra.name, str(extra.specifier)) == (f"ruststream-core-{name}", pin)
    assert f"ruststream-core{pin}" in plugin["project"]["dependencies"]


def test_extra_all(name: str, core: dict[str, Any]) -> None:
    """`all` brings every plugin except the one that needs a compiler."""
    everything = Requirement(core["project"]["optional-dependencies"]["all"][0])
    assert (name in everything.extras) == (name != "amqp")


def test_entry_points(name: str, plugin: dict[str, Any]) -> None:
    """Each scheme is one line with the same target."""
    schemes = plugin["project"]["entry-points"]["ruststream.plugins"]
    assert set(schemes.values()) == {f"ruststream_core_{name}._plugin"}


def test_one_owner_of_each_scheme() -> None:
    """Two plugins of one scheme would be an error for whoever installs both."""
    names = [point.name for point in metadata.entry_points(group="ruststream.plugins")]
    assert len(names) == len(set(names))


def test_files(root: Path, name: str) -> None:
    """Who knows one plugin finds everything in the next; a large module may be a package of the same name."""
    folder = root / "plugins" / name
    package = folder / f"ruststream_core_{name}"
    modules = ["_plugin"] if name in COMMANDS else TRANSPORT
    wanted = [folder / "README.md", folder / "LICENSE", folder / "tests", package / "__init__.py", package / "py.typed"]
    missing = [str(path.relative_to(root)) for path in wanted if not path.exists()]
    missing += [
        module for module in modules if not ((package / module).is_dir() or (package / f"{module}.py").exists())
    ]
    assert missing == []


def test_licence_is_a_real_file(root: Path, name: str) -> None:
    """A link would dangle in the source distribution."""
    licence = root / "plugins" / name / "LICENSE"
    assert not licence.is_symlink()
    assert licence.read_bytes() == (root / "LICENSE").read_bytes()


def test_client_is_imported_by_connect(name: str, plugin: dict[str, Any]) -> None:
    """A service that names a URL, or only lists the plugins, does not pay for the client library."""
    extras = plugin["project"].get("optional-dependencies", {}).values()
    requirements = {Requirement(line).name for part in (plugin["project"]["dependencies"], *extras) for line in part}
    modules = metadata.packages_distributions()
    clients = {module for module, owners in modules.items() if (requirements - EAGER).intersection(owners)}
    assert not clients.intersection(_imported(f"ruststream_core_{name}", f"ruststream_core_{name}._plugin"))


def _imported(*modules: str) -> set[str]:
    """What a fresh interpreter has loaded after these imports."""
    code = f"import json, sys, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(run.stdout))

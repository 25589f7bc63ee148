"""Every task of this repository. Needs Python 3.11 and pip, nothing else.

The main job is shown by `python3 noxfile.py -s demo`. What CI runs is `python3 noxfile.py -s tests`.
`python3 noxfile.py -l` lists the other tasks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CONSTRAINTS = ROOT / "constraints.txt"

if __name__ == "__main__":
    boot = ROOT / ".nox" / "boot"
    python = boot / "bin" / "python"
    # `python` is a link: false when the interpreter that it was made with is gone.
    if not (python.exists() and (boot / "bin" / "nox").exists()):
        # Debian refuses `pip install` outside an environment (PEP 668) and packages ensurepip apart,
        # so the environment is made without pip and filled by the system's pip.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", boot], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-warn-script-location"]
        subprocess.run([*pip, "-c", str(CONSTRAINTS), "nox[uv]"], check=True)
    # Debian leaves the servers' folder out of a user's PATH.
    os.environ["PATH"] = os.pathsep.join([str(boot / "bin"), os.environ.get("PATH", os.defpath), "/usr/sbin"])
    if not os.access(os.path.expanduser("~"), os.W_OK):  # noqa: PTH111  `Path.home` fails where there is none
        os.environ.setdefault("UV_CACHE_DIR", str(ROOT / ".nox" / "cache"))
    os.execv(python, [str(python), "-m", "nox", "-f", __file__, *sys.argv[1:]])

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]

PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
PACKAGES = ["ruststream_core", *(f"ruststream_core_{name}" for name in PLUGINS)]
CI = os.environ.get("CI") == "true"

# Programs that the tests of a plugin start, and the Debian packages that bring them.
SERVERS = {
    "nats": {"nats-server": "nats-server", "openssl": "openssl"},
    "bench": {"nats-server": "nats-server", "valgrind": "valgrind"},
    "sql": {"mariadbd": "mariadb-server", "postgres": "postgresql"},
}
# Plugins that are not finished, and the part of their tests that all have to pass by now. `plugin(NAME)` runs all.
UNFINISHED = {
    "nats": ["test_client.py", "test_settings.py"],
    "sql": ["test_queues.py", "test_settings.py", "test_stand_in.py"],
}
# Where Debian and Go put programs that are not on the PATH.
FOLDERS = ["/usr/local/go/bin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]

ENVIRONMENT = {
    "CARGO_TARGET_DIR": str(ROOT / ".nox" / "cargo"),
    "PYRIGHT_PYTHON_GLOBAL_NODE": "0",  # the Node.js of the constraints, not the machine's
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_SYSTEM_CERTS": "1",  # as pip on Debian does: a company's own authority counts
}


# Set-up


def editable(name: str) -> str:
    """Names the folder of a plugin with all its extras, as an installer takes it."""
    project = tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text())["project"]
    extras = ",".join(project.get("optional-dependencies", {}))
    return f"./plugins/{name}[{extras}]" if extras else f"./plugins/{name}"


def install(session: nox.Session, *groups: str) -> None:
    """Installs the core and every plugin from their folders, with the tools of these dependency groups."""
    session.env.update(ENVIRONMENT)
    folders = [".", *map(editable, PLUGINS)]
    tools = nox.project.dependency_groups(PYPROJECT, *groups)
    session.install("-q", "-c", str(CONSTRAINTS), *(part for path in folders for part in ("-e", path)), *tools)


def servers(session: nox.Session, *plugins: str) -> None:
    """Sees to it that the servers of these plugins can be started: as root by installing them.

    Where that cannot be, CI stops here; elsewhere the tests that need them are skipped.
    """
    if not installed("go"):  # builds the newest NATS server, which Debian does not have
        session.install("-q", "-c", str(CONSTRAINTS), *nox.project.dependency_groups(PYPROJECT, "go"))
    wanted = {program: package for plugin in plugins for program, package in SERVERS.get(plugin, {}).items()}
    missing = sorted(package for program, package in wanted.items() if not installed(program))
    if not missing:
        return
    if os.geteuid() == 0 and installed("apt-get"):
        apt(session, "update")
        apt(session, "install", "-y", "--no-install-recommends", *missing)
        return
    line = f"apt-get install -y {' '.join(missing)}"
    if CI:
        session.error(f"The tests need servers that are not installed. As root: {line}")
    session.warn(f"Tests that need a server are skipped. To run them, as root: {line}")


def installed(program: str) -> bool:
    """Tells whether the tests will find a program."""
    return shutil.which(program, path=os.pathsep.join([os.environ["PATH"], *FOLDERS])) is not None


def apt(session: nox.Session, *args: str) -> None:
    """Runs apt-get so that it never asks."""
    session.run("apt-get", "-q", *args, external=True, env={"DEBIAN_FRONTEND": "noninteractive"})


def everything() -> list[str]:
    """What has to pass: all tests, those of unfinished plugins as far as `UNFINISHED` names them."""
    whole = [f"plugins/{name}" for name in PLUGINS if name not in UNFINISHED]
    parts = [f"plugins/{name}/tests/{file}" for name, files in UNFINISHED.items() for file in files]
    return ["tests", *whole, *parts]


# Checks


def check_lint(session: nox.Session) -> None:
    """Style, format and the layers."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


def check_types(session: nox.Session) -> None:
    """Packages and tests apart: together mypy would find several modules of one name."""
    folders = ["tests", "examples", *(f"plugins/{name}/tests" for name in PLUGINS)]
    present = [folder for folder in folders if any((ROOT / folder).rglob("*.py"))]
    session.run("mypy", *(part for package in PACKAGES for part in ("-p", package)))
    session.run("mypy", "--explicit-package-bases", *present, "conftest.py", "noxfile.py")
    session.run("pyright", "tests/typing", "examples")


def check_wheels(session: nox.Session) -> None:
    """Builds every distribution and tries the wheels in an environment of their own, outside the checkout."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    pins = ("-c", str(CONSTRAINTS))
    for folder in (ROOT, *(ROOT / "plugins" / name for name in PLUGINS)):
        session.run("uv", "build", "-q", "-b", str(CONSTRAINTS), "-o", str(dist), str(folder), external=True)
    built = [str(wheel) for wheel in dist.glob("*.whl")]
    with tempfile.TemporaryDirectory() as outside:
        venv = str(Path(outside, "venv"))
        interpreter = str(Path(venv, "bin", "python"))
        session.run("uv", "venv", "-q", "-p", str(Path(session.bin, "python")), venv, external=True)
        session.run("uv", "pip", "install", "-q", "-p", interpreter, *pins, *built, external=True)
        with session.chdir(outside):
            session.run(interpreter, "-I", str(ROOT / "tests" / "repo" / "installed.py"), *PACKAGES, external=True)


# Tasks


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that CI runs. Arguments are pytest's, and then only the tests run."""
    install(session, "lint", "types", "tests")
    servers(session, *PLUGINS)
    if not session.posargs:
        check_lint(session)
        check_types(session)
        check_wheels(session)
    session.run("pytest", "-q", *(session.posargs or everything()))


@nox.session
@nox.parametrize("name", PLUGINS, ids=PLUGINS)
def plugin(session: nox.Session, name: str) -> None:
    """The tests of one plugin."""
    install(session, "tests")
    servers(session, name)
    session.run("pytest", "-q", f"plugins/{name}", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format and the layers."""
    install(session, "lint")
    check_lint(session)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy over everything, pyright over what a user writes."""
    install(session, "lint", "types", "tests")
    check_types(session)


@nox.session
def lowest(session: nox.Session) -> None:
    """The tests of the core with the lowest versions it says it works with."""
    session.env.update(ENVIRONMENT)
    tools = nox.project.dependency_groups(PYPROJECT, "tests")
    bounds = [requirement.replace(">=", "==") for requirement in PYPROJECT["project"]["dependencies"]]
    session.install("-q", "-e", ".", *bounds, *tools)
    core = [str(path) for path in sorted((ROOT / "tests").iterdir()) if path.name not in {"docs", "repo"}]
    session.run("pytest", "-q", *(session.posargs or core))


@nox.session
def load(session: nox.Session) -> None:
    """The tests under load, three minutes each; ten seconds each with --short."""
    seconds = "10" if "--short" in session.posargs else "180"
    rest = [arg for arg in session.posargs if arg != "--short"]
    install(session, "tests")
    servers(session, *PLUGINS)
    environment = {"RUSTSTREAM_TEST_LOAD_SECONDS": seconds}
    session.run("pytest", "-q", "-m", "load", "--timeout=1800", *rest, env=environment)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job, shown."""
    install(session)
    session.run("python", "examples/demo.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measures: `-s bench -- ARGUMENTS` are those of `ruststream bench`."""
    install(session, "peers")
    servers(session, *PLUGINS)
    session.run("ruststream", "bench", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Runs and type-checks the code of the pages, then builds the site into `site`."""
    install(session, "types", "tests", "docs")
    session.run("pytest", "-q", "tests/docs")
    session.run("mkdocs", "build", "-q", "--strict", *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Builds every distribution into `dist` and tries the wheels outside the checkout."""
    install(session)
    check_wheels(session)


@nox.session
def constraints(session: nox.Session) -> None:
    """Writes `constraints.txt` anew, with the newest versions that everything here admits."""
    session.env.update(ENVIRONMENT)
    groups = nox.project.dependency_groups(PYPROJECT, *PYPROJECT["dependency-groups"])
    folders = [".", *map(editable, PLUGINS)]
    session.install("-q", "-U", *(part for path in folders for part in ("-e", path)), *groups)
    frozen = session.run("uv", "pip", "freeze", "-q", "--exclude-editable", silent=True, external=True)
    CONSTRAINTS.write_text(str(frozen))

"""Run the parts that the numbers of the documentation come from, and keep what they find.

    python benchmarks/evidence.py --machine cpu               # every part for a CPU
    python benchmarks/evidence.py --machine gpu transport waves --again

Each part is a benchmark or a study in a process of its own, bound to a few cores and ended after a
while. What it finds becomes `docs/evidence/NAME.json` (`NAME_gpu.json` for `--machine gpu`) as soon
as it ends: its tables, with the command, the commit, a digest of the sources, the machine and the
versions. A part whose file was made from the same sources is skipped, so that the command goes on
where it was stopped. One that fails leaves its old file alone, is named in the end, and makes the
exit status 1.

The pages take their tables from these files (`docs/evidence_hook.py`), and a test holds the numbers
of their sentences against them.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tables import KEPT

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/evidence"
SOURCES = ("natgrad", "natgrad_studies", "benchmarks", "examples")
VERSIONS = ("jax", "jaxlib", "equinox", "lineax", "numpy", "scipy")


@dataclass(frozen=True)
class Part:
    """A name, its command without the `python` before it, and what it needs.

    A command that begins with `natgrad` is a study. `seconds` are rough ones, `peers` the packages
    that run beside natgrad where they are installed.
    """

    name: str
    command: str
    seconds: int
    cores: int | None = 1
    machine: str = "cpu"
    peers: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}{'_gpu' if self.machine == 'gpu' else ''}.json"

    @property
    def limit(self) -> float:
        """Seconds after which it is ended."""
        return 4 * self.seconds + 120

    @property
    def said(self) -> str:
        """The command as a reader would type it."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        python = [] if self.command.startswith("natgrad ") else ["python"]
        return " ".join([*settings, *python, self.command])


def _bench(name: str, options: str = "") -> str:
    return f"benchmarks/bench_{name}.py {options}".strip()


def _records(name: str, problems: str, seconds: int, peers: tuple[str, ...] = ()) -> Part:
    """Some problems of the record book on an accelerator."""
    command = f"natgrad study records --preset gpu --problems {problems}"
    return Part(f"records_{name}", command, seconds, None, "gpu", peers)


HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
SPARSE = ("scikit-sparse", "sparseqr", "pyamg")
EXAMPLES = "quickstart optimal_transport l_shape point_cloud"
WAVES = "natgrad study waveform-inversion --preset reduced"
MARMOUSI = f"{WAVES} --velocity marmousi.npy"
RIVALS = "--methods L2 L2_five LBFGS LBFGS_long"
SKIPPED = "--smoothing 20 --frequency 5 --max-propagations 300 --methods L2"
ASIDE = "--sections salt Marmousi folded-7 --starts medium hard --methods GD H1 L2 LBFGS"
ONE = "--sections faulted --starts medium"
FEWER = "--shots 2 --budgets 50 100 150 --devices 1"
PROBLEMS = "--only problems --shots 2 --devices 1"
OURS = "--problems " + " ".join(
    f"{name}:{start}"
    for name in ("folded", "faulted", "salt")
    for start in ("easy", "medium", "hard")
)
SHORT = "L2 GD LBFGS --budgets 50 100 150"
HARD = "--problems salt:hard Marmousi:hard faulted:hard"
TWELVE = f"{OURS} Marmousi:easy Marmousi:medium Marmousi:hard"
NETWORK = "natgrad study poisson-pinn --preset reduced"
PARTS = (
    # counts and errors, which any machine has alike
    Part("absorbing", _bench("absorbing"), 600),
    Part("multigrid_iterations", _bench("multigrid_iterations", "--full"), 300, 2),
    Part("hard_densities", _bench("hard_densities"), 60, 2, peers=SPARSE),
    Part("low_rank", _bench("low_rank"), 60),
    Part("engines", _bench("engines"), 180, 2, peers=("torch", "deepwave", "devito")),
    Part("point_clouds", _bench("point_clouds"), 300, 2),
    Part("ring", _bench("point_clouds", "--ring 200"), 240, 2),
    Part("unstructured", _bench("unstructured"), 120, 2, peers=("scikit-fem", *SPARSE)),
    Part("examples", _bench("examples", EXAMPLES), 180, 2),
    # seconds
    Part("cold_start", _bench("cold_start"), 240, 2),
    Part("direction", _bench("direction", "--sides 70 140"), 300, 2),
    Part("gram", _bench("gram"), 120),
    Part("million", _bench("million"), 120, 2),
    Part("darcy_direction", _bench("darcy"), 120, 2),
    Part("mesh", _bench("mesh"), 90, 2),
    Part("processes", _bench("processes"), 120, 2),
    Part("rows", _bench("rows"), 180),
    Part("transport", _bench("transport"), 240, 2, peers=SPARSE),
    Part("transport_memory", _bench("transport_device", "--sizes 1120"), 60),
    Part("huge_pages", _bench("transport_device", "--sizes 1120"), 60, environment=HUGE_PAGES),
    Part("waves", _bench("waves"), 400, peers=("deepwave", "devito", "torch")),
    Part("waves_few", _bench("waves", "--shots 4"), 120, peers=("deepwave", "devito", "torch")),
    Part("wave_devices", _bench("wave_devices"), 60, 2),
    Part("optax", _bench("optax"), 60, 2, peers=("optax",)),
    Part("pinn_paper", _bench("pinn_paper", "--seconds 45 --seeds 0 1 2"), 500),
    Part("pinn_peers", _bench("pinn_peers", "--seconds 60"), 300),
    Part(
        "stages",
        _bench("stages", "--widths 16 24 --counts 600 1600 --iterations 150"),
        240,
        2,
    ),
    Part("density_image", _bench("examples", "density_image"), 300, 2),
    Part("training_loops", _bench("examples", "training_loops"), 300, 2, peers=("optax", "flax")),
    # studies
    Part("mixture", "natgrad study gaussian-mixture --preset paper", 400, 2),
    Part("metric_cost", "natgrad study metric-cost --preset paper", 500, 2, peers=SPARSE),
    Part("darcy", "natgrad study darcy --preset paper", 400, 2),
    Part("pinn_reduced", NETWORK, 300),
    Part("pinn_large_damping", f"{NETWORK} --methods L2 FR H1 Hm1 --batched --damping 1e-2", 100),
    Part("pinn_small_damping", f"{NETWORK} --methods L2 FR H1 Hm1 --batched --damping 1e-6", 100),
    Part(
        "pinn_authors",
        f"{NETWORK} --fidelity authors --seconds 40 --methods GD L2 FR H1 dotH1 Hm1 dotHm1 W2"
        " --batched",
        420,
    ),
    Part("pinn_study", "natgrad study poisson-pinn --preset paper --seconds 20", 480),
    Part(
        "records_one_core",
        "natgrad study records --problems helmholtz helmholtz-50 burgers allen-cahn convection kdv"
        " reaction --methods LM LBFGS --seconds 60 --workers 2",
        *(480, 2),
    ),
    Part(
        "records_optimistix",
        "natgrad study records --problems helmholtz helmholtz-50 --methods optimistix --seconds 60"
        " --workers 2",
        *(120, 2),
        peers=("optimistix",),
    ),
    Part("damping", _bench("damping", "--problems helmholtz reaction --iterations 100"), 400),
    Part("trust", _bench("trust", f"--only problems {ASIDE} {FEWER}"), 400, 2),
    Part("trust_strategies", _bench("trust", f"--only strategies {ONE} {FEWER}"), 200, 2),
    Part("trust_sections", _bench("trust", f"{PROBLEMS} {OURS} --methods {SHORT}"), 500, 2),
    Part("trust_hard", _bench("trust", f"{PROBLEMS} {HARD} --methods GD L2 LBFGS"), 300, 2),
    Part("trust_long", _bench("trust", PROBLEMS), 2700, 2),
    Part("wave_easy", MARMOUSI, 240, 2),
    Part("wave_medium", f"{MARMOUSI} --smoothing 8 --frequency 3", 240, 2),
    Part("wave_hard", f"{MARMOUSI} --smoothing 20 --frequency 3.5 {RIVALS}", 120, 2),
    Part("wave_salt", f"{WAVES} --section salt --smoothing 20 --frequency 3.5 {RIVALS}", 120, 2),
    Part("skipped", f"{MARMOUSI} {SKIPPED}", 60, 2),
    Part("skipped_transport", f"{MARMOUSI} {SKIPPED} --misfit transport", 60, 2),
    Part("skipped_bands", f"{MARMOUSI} {SKIPPED} --bands 2 3 4", 60, 2),
    Part("skipped_faulted", f"{WAVES} {SKIPPED}", 60, 2),
    Part("skipped_faulted_bands", f"{WAVES} {SKIPPED} --bands 2 3 4", 60, 2),
    # an accelerator
    Part("devices", _bench("devices"), 120, None, "gpu"),
    Part("direction", _bench("direction", "--full"), 240, None, "gpu"),
    Part("gram", _bench("gram"), 100, None, "gpu"),
    Part("pivoted_qr", _bench("pivoted_qr"), 120, None, "gpu"),
    Part("million", _bench("million"), 60, None, "gpu"),
    Part("million_networks", _bench("million", "--networks"), 180, None, "gpu"),
    Part("transport", _bench("transport_device"), 240, None, "gpu"),
    Part("kernels_check", _bench("kernels", "check"), 190, None, "gpu"),
    Part("kernels", _bench("kernels", "time"), 240, None, "gpu", ("deepwave", "torch")),
    Part("kernels_store", _bench("kernels", "store"), 120, None, "gpu"),
    Part("pinn", _bench("pinn_device", "--only iteration memory"), 60, None, "gpu"),
    Part("pinn_iterations", _bench("pinn_device", "--only minimize kernel"), 60, None, "gpu"),
    Part("density_image", _bench("examples", "density_image"), 90, None, "gpu"),
    # the record book in parts of a few minutes
    _records(
        "first",
        "helmholtz helmholtz-50 --seeds 0 --methods LM JAX-NG --jax-ng checkouts/JAX-NG",
        240,
    ),
    _records(
        "plane",
        "helmholtz helmholtz-50 burgers allen-cahn convection kdv reaction --workers 3",
        480,
    ),
    _records("legs", "ks cavity-3200 --workers 3", 280),
    _records("many", "poisson-10d heat-4d --workers 3", 180),
    _records("rest", "cavity-100 poisson-5d burgers-inverse --workers 3", 300),
    _records(
        "rivals", "helmholtz burgers --seeds 0 --methods LM LBFGS SSBroyden SOAP", 540, ("optax",)
    ),
    Part(
        "trust",
        _bench("trust", f"--size paper --memory 30 --only problems {TWELVE}"),
        *(900, None, "gpu"),
    ),
    Part(
        "marmousi",
        "natgrad study waveform-inversion --preset paper --velocity marmousi.npy",
        *(240, None, "gpu"),
    ),
)


# --- one part ------------------------------------------------------------------------------------


def run(part: Part, sources: str) -> None:
    """Run it, and write its file; `RuntimeError` says why it could not be."""
    work = digest({"command": part.said, "sources": sources})
    study = ROOT / ".benchmarks" / f"{part.path.stem}-{work}"  # what is done outlasts a failure
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "tables"
        command = [sys.executable, *shlex.split(part.command)]
        if part.command.startswith("natgrad "):
            command = [sys.executable, __file__, "--study", part.command, "--folder", str(study)]
        start = time.perf_counter()
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, _cores(part))  # which a process takes over
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, env=_environment(part, kept), start_new_session=True
            )
        finally:
            os.sched_setaffinity(0, allowed)
        with process:
            try:
                code = process.wait(part.limit)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"was ended after {part.limit:.0f} s") from None
            finally:  # with what it has started itself
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if code:
            raise RuntimeError(f"ended with status {code}")
        seconds = time.perf_counter() - start
        lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    if not lines:
        raise RuntimeError("has shown no table")
    content = {
        "command": part.said,
        "commit": _commit(),
        "sources": sources,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": _machine(part),
        "versions": _versions(part),
        "seconds": round(seconds, 1),
        "tables": [json.loads(line) for line in lines],
    }
    content["digest"] = digest(content)
    part.path.parent.mkdir(parents=True, exist_ok=True)
    new = part.path.with_suffix(".new")
    text = json.dumps(content, indent=1, ensure_ascii=False)
    in_a_line = lambda row: re.sub(r"\n *", " ", row[0])
    text = re.sub(r"\[\n[^][{}]*\]", in_a_line, text)  # a row of a table
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(part.path)
    shutil.rmtree(study, ignore_errors=True)


def digest(content: dict[str, Any]) -> str:
    """Of all that a file holds but this."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _environment(part: Part, kept: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {"PYTHONPATH": path, KEPT: str(kept)} | part.environment
    if part.machine == "cpu":
        settings |= {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | settings


def _cores(part: Part) -> list[int]:
    """The first of those that this process may use."""
    return sorted(os.sched_getaffinity(0))[: part.cores]


def _commit() -> str:
    """The commit, and whether the sources differ from it; NATGRAD_COMMIT where there is no git."""
    if named := os.environ.get("NATGRAD_COMMIT"):
        return named
    ask = lambda *words: subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        changed = ask("status", "--porcelain", "--", *SOURCES)
        return ask("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _machine(part: Part) -> dict[str, Any]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    found = {"CPU": model[1] if model else platform.processor(), "cores": len(_cores(part))}
    if part.machine == "gpu":
        ask = "import jax; print(jax.devices()[0].device_kind)"
        said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
        found["GPU"] = (said.stdout.split("\n") or ["unknown"])[0]
    return found


def _versions(part: Part) -> dict[str, str]:
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    found = {"python": platform.python_version(), "natgrad": project[1] if project else "unknown"}
    for name in (*VERSIONS, *part.peers):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def sources_digest() -> str:
    """Of every source file that a result could depend on, as it is now."""
    total = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__).resolve():  # a part is known by its command
                name = path.relative_to(ROOT).as_posix()
                total.update(f"{name}\0{len(content := path.read_bytes())}\0".encode() + content)
    return total.hexdigest()[:16]


# --- studies -------------------------------------------------------------------------------------


def run_study(command: str, folder: str) -> None:
    """Run a study, and keep the tables and the sentences of its page.

    The same as the command, which needs tyro to be read.
    """
    from tables import show_table

    from natgrad_studies.registry import STUDIES
    from natgrad_studies.settings import fill

    _, _, name, *words = shlex.split(command)
    given: dict[str, list[Any]] = {}
    for word in words:
        if word.startswith("--"):
            values = given.setdefault(word.removeprefix("--").replace("-", "_"), [])
        else:
            values.append(_value(word))
    presets = STUDIES[name].presets
    base = presets[given.pop("preset", [next(iter(presets))])[0]]
    several = lambda key: isinstance(getattr(base, key), tuple)
    chosen = {key: value if several(key) else value[0] for key, value in given.items()}
    settings = fill(base, chosen | {"output": f"{folder}/study"}, command)
    STUDIES[name].import_beside(settings)
    from natgrad_studies import running

    running.prepare_process()
    running.run_study(settings, lambda line: print(line, flush=True))
    page = json.loads(Path(folder, "study/page.json").read_text(encoding="utf-8"))
    texts, names = [], []
    for section in page["sections"]:
        slug = re.sub(r"\W+", "_", section["title"].lower()).strip("_")
        for part in section["parts"]:
            texts += [[section["title"], part[key]] for key in ("text", "caption") if key in part]
            if part["kind"] == "table":
                names.append(slug)
                again = names.count(slug)
                show_table(f"{slug}_{again}" if again > 1 else slug, part["header"], part["rows"])
    show_table("text", ["section", "text"], texts)


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


# --- all parts -----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts; all where none is named")
    parser.add_argument("--machine", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--again", action="store_true", help="also what is up to date")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--study", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.study:
        run_study(arguments.study, arguments.folder)
        return 0
    here = {part.name: part for part in PARTS if part.machine == arguments.machine}
    if unknown := set(arguments.names) - set(here):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(here)}")
    sources, failed = sources_digest(), []
    for part in [here[name] for name in arguments.names or here]:
        old = json.loads(part.path.read_text(encoding="utf-8")) if part.path.exists() else {}
        current = old.get("sources") == sources and old.get("command") == part.said
        if arguments.list:
            state = "up to date" if current else "to be run" if not old else "older"
            print(f"{part.name:<22} {part.seconds:>4} s  {part.cores or 'all'} cores  {state}")
            continue
        if current and not arguments.again:
            print(f"== {part.name}: up to date")
            continue
        print(f"== {part.name}: {part.said}", flush=True)
        try:
            run(part, sources)
        except RuntimeError as error:
            print(f"== {part.name} {error}", flush=True)
            failed.append(part.name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and what runs is ended with it
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

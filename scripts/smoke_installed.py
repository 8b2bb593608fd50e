"""Check an installed monolith: import it, run a short training, and run `monolith doctor`.

Usage: python -I scripts/smoke_installed.py [--installed-below FOLDER]

scripts/build-wheels runs this file with the Python of a clean environment. It needs only the dependencies of the
package.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import monolith as ml
from monolith import cli


def train() -> str:
    """Train a small model in a plain loop; the loss must halve, and every id must have a row."""
    torch.manual_seed(0)
    emb = ml.Embeddings({"user": ml.Slot(dim=4)})
    head = torch.nn.Linear(4, 1)
    dense_optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        user = torch.randint(100, (64,))
        clicks = (user % 3 == 0).float()
        scores = head(emb({"user": user})["user"]).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, clicks)
        dense_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        dense_optimizer.step()
        emb.step()
        losses.append(loss.item())
    if not losses[-1] < 0.5 * losses[0] or emb.num_rows != 100:
        raise SystemExit(
            f"the model does not train: loss {losses[0]:.3f} to {losses[-1]:.3f}, {emb.num_rows} rows of 100"
        )
    return f"trained: loss {losses[0]:.3f} to {losses[-1]:.3f}, {emb.num_rows} rows"


def command(*arguments: str) -> str:
    """Run a command in this process and return its output; exits if the command fails."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = cli.main(arguments)
    if status != 0:
        raise SystemExit(f"monolith {' '.join(arguments)} ended with status {status}")
    return printed.getvalue()


def installed_program() -> str:
    """Check the version of the installed program `monolith`."""
    program = Path(sys.executable).parent / "monolith"
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
    if done.stdout != f"monolith {ml.__version__}\n":
        raise SystemExit(f"{program} --version: expected {ml.__version__}, got {done.stdout!r}\n{done.stderr}")
    return f"program: {done.stdout.strip()}"


def main() -> int:
    """Run all checks and print a line for each; a failed check raises or exits with a status other than 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed-below", type=Path, help="fail if the package is installed elsewhere")
    args = parser.parse_args()
    path = Path(ml.__file__).resolve()
    if args.installed_below is not None and args.installed_below.resolve() not in path.parents:
        raise SystemExit(f"monolith was imported from {path}, expected a path below {args.installed_below}")
    print(f"imported: monolith {ml.__version__}, torch {torch.__version__}")
    print(installed_program())
    print(train())
    with tempfile.TemporaryDirectory() as folder:
        task = ["monolith.testing:ExampleTask", "--model_dir", folder, "--steps", "5", "--json"]
        for steps in (5, 10):
            if (step := json.loads(command("train", *task))["global_step"]) != steps:
                raise SystemExit(f"monolith train: expected step {steps} in {folder}, got {step}")
    print("trained and resumed by the command line: step 10")
    versions = json.loads(command("doctor", "--json"))["versions"]
    if {versions["monolith"], versions["core"]} != {ml.__version__}:
        raise SystemExit(f"monolith doctor: expected version {ml.__version__}, got {versions}")
    print(f"doctor: core {versions['core']}, Python {versions['python']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

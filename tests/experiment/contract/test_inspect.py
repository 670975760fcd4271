from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment.contract.inspect import inspect_project, write_proposal
from experiment.contract.load import check_contract, load_contract
from experiment.contract.render import render, render_contract
from experiment.contract.strict_yaml import parse
from experiment.errors import ContractInvalid, NotFound

TRAIN = """
import os
from pathlib import Path
model = AutoModel.from_pretrained("Qwen/Qwen2.5-0.5B")
other = AutoModel.from_pretrained(name)
rows = load_dataset("org/rows")
token = os.environ["HF_TOKEN"]
root = Path(os.environ["AUTODL_RUN_ROOT"])
(root / "summary.json").write_text("{}")
with open(os.path.join(root, "curves.csv"), "w") as stream:
    pass
open("read_only.json")
model.save_pretrained(f"{root}/model")
if __name__ == "__main__":
    main()
"""

# files, dotted key, value, words of the reason
GUESSED: list[tuple[dict[str, str], str, Any, str]] = [
    ({"train.py": "x"}, "project.entry_command", "python train.py", "train.py is there"),
    ({"train.sh": "x", "train.py": "x"}, "project.entry_command", "bash train.sh", "train.sh"),
    ({"my_loop.py": TRAIN}, "project.entry_command", "python my_loop.py", "my_loop.py:14"),
    ({"odd name.py": TRAIN}, "project.entry_command", "python 'odd name.py'", "starts as"),
    ({"README": "x"}, "project.entry_command", "python train.py", "write the command"),
    (
        {"train.py": "x", "requirements.txt": ""},
        "project.requirements",
        "requirements.txt",
        "there",
    ),
    ({"train.py": "x"}, "project.requirements", None, "nothing is installed"),
    (
        {"g.yaml": "judge: judge.py\ngenerations: 8\n", "judge.py": "x"},
        "project.trainer",
        "grpo",
        "",
    ),
    (
        {"g.yaml": "judge: judge.py\ngenerations: 8\n", "judge.py": "x"},
        "project.config",
        "g.yaml",
        "",
    ),
    ({"t.py": TRAIN}, "inputs.0.id", "Qwen/Qwen2.5-0.5B", "t.py:4"),
    ({"t.py": TRAIN}, "inputs.0.source", "modelscope", "no revision is pinned"),
    ({"t.py": TRAIN}, "inputs.1.kind", "dataset", "t.py:6"),
    ({"t.py": TRAIN}, "run.artifacts", ["summary.json", "curves.csv", "model"], "t.py:9"),
    ({"t.py": TRAIN}, "secrets", ["HF_TOKEN"], "t.py:7"),
    ({"a": "x", "m/config.json": "{}", "m/w.safetensors": "x"}, "inputs.0.path", "m", "weights"),
    ({"a": "x", "rows.jsonl": "{}"}, "project.include", ["rows.jsonl"], "travel in the bundle"),
    ({"train.py": "x", "verify_it.py": "x"}, "run.verifier", "python verify_it.py", "is there"),
    ({"train.py": "x", "tests/test_a.py": "x"}, "run.test_command", "python -m pytest -q", "there"),
    ({"train.py": "(" * 400 + "x"}, "project.entry_command", "python train.py", "is there"),
]


def project_of(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        place = folder / "My Project" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder / "My Project"


@pytest.mark.parametrize(("files", "key", "value", "why"), GUESSED)
def test_guesses(files: dict[str, str], key: str, value: Any, why: str, tmp_path: Path) -> None:
    """Each value comes with the reason that is in the project; the file loads as it is."""
    root = project_of(tmp_path, files)
    proposal = inspect_project(root)
    reasons = [g for g in proposal.guesses if key == g["key"] or key.startswith(g["key"] + ".")]
    assert reasons
    assert why in reasons[0]["why"]
    if key != "project.include":
        place: Any = proposal.contract
        for part in key.split("."):
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert place == value
    text = render(proposal)
    assert parse(text.encode()) == (proposal.contract, [])
    assert check_contract(proposal.contract, root).job == "my-project"


def test_written_once(tmp_path: Path) -> None:
    """The file goes into the project's folder, loads, and is never written over."""
    root = project_of(tmp_path, {"train.py": "x"})
    text = render(inspect_project(root))
    path = write_proposal(text, root)
    assert path == root / "contract.yaml"
    assert load_contract(path).project.entry_command == "python train.py"
    with pytest.raises(ContractInvalid, match="exists already"):
        write_proposal("other", root)
    assert path.read_text() == text


def test_inspecting_changes_nothing(tmp_path: Path) -> None:
    """A proposal is only a proposal."""
    root = project_of(tmp_path, {"train.py": "x"})
    inspect_project(root)
    assert [path.name for path in root.iterdir()] == ["train.py"]
    with pytest.raises(NotFound):
        inspect_project(tmp_path / "nowhere")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\ufeff\uffff\ufffe")
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["job", "run", "host", "null", "yes"]), VALUES, max_size=4))
def test_rendered_yaml_reads_back(contract: dict[str, Any]) -> None:
    """Whatever is in a contract, its YAML means the same."""
    value, faults = parse(render_contract(contract).encode())
    assert not faults
    assert (value or {}) == contract

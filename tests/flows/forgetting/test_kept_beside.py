"""`retemper forget` and the verdicts on batches that were checked beside the source."""

import json
from typing import Any

from flows.intake.inbox import take_in
from flows.intake.settings import Gate, Intake


def test_batches_stay_accepted_when_the_source_loses_a_record(dvc_project: Any, tiny_corpus: Any) -> None:
    """Without the champion's corpus, which forget removes, their texts would be compared by words."""
    strict, loose = (Intake(inbox="inbox", gate=Gate(shift=None, duplicates=share, least=2)) for share in (0.0, 1.0))
    copies = "".join(json.dumps({"_id": f"copy{number}", "text": "one and the same"}) + "\n" for number in range(4))
    dvc_project.write("inbox/1/corpus.jsonl", copies)
    dvc_project.write("retraining.yaml", "intake: {inbox: inbox}\n")

    def states(rule: Intake) -> list[str]:
        return [batch.state for batch in take_in(rule, "beir:beir", dvc_project.folder, say=lambda _: None).batches]

    assert states(loose) == ["accepted"]
    document = next(iter(tiny_corpus.documents))
    result = dvc_project.retemper("forget", document, "--yes")
    assert result.status == 0, result
    assert f'"{document}"' not in (dvc_project.folder / "beir/corpus.jsonl").read_text()
    assert states(strict) == ["accepted"], "its texts were judged before"

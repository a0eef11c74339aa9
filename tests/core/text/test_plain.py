"""The split of a query depends on its plain text alone."""

import pytest

from tasks.core.text.plain import SHARE, Shares, is_dev, plain


def test_a_share_of_the_queries_is_held_out_and_stays_so_with_a_larger_share() -> None:
    texts = [f"question {n}" for n in range(5000)]
    dev_texts = {share: {text for text in texts if is_dev(text, share)} for share in (0.0, 0.1, 0.2, 1.0)}
    assert [len(dev_texts[share]) / 5000 for share in dev_texts] == pytest.approx([0, 0.1, 0.2, 1], abs=0.02)
    assert dev_texts[0.0] < dev_texts[0.1] < dev_texts[0.2] < dev_texts[1.0]


def test_splits_are_as_ever() -> None:
    """Were they others, a file that has grown would move queries that were trained on to dev or test."""
    shares = Shares(SHARE, SHARE)
    splits = "".join({"train": ".", "dev": "d", "test": "t"}[shares.split("train", f"question {n}")] for n in range(40))
    assert splits == ".........t...ttt............t.d........."


def test_equal_questions_are_in_one_split_and_other_splits_stay() -> None:
    shares = Shares(0.3, 0.3)
    for n in range(100):
        question = f"What is  {n}?"
        assert shares.split("train", question) == shares.split("train", plain(question)) == shares.split("train", question.upper() + " ")
        assert shares.split("dev", question) == "dev" and Shares().split("train", question) == "train"

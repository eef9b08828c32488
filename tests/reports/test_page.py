import base64
import io
import json
import time

import numpy as np
import pytest
import yaml

from hypersphere import reports
from hypersphere.cli import main
from hypersphere.commands import _config, train
from hypersphere.reports.stills import stills

SIZES = [(1280, 900), (390, 844)]


def visit(browser, page, width=1280, height=900):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(page.resolve().as_uri())
    deadline = time.monotonic() + 60
    while browser.execute_script("return document.body.dataset.ready") != "yes":
        assert time.monotonic() < deadline, "the page did not finish drawing"
        time.sleep(0.1)


def quick_page(run):
    return reports.write_page(run, parse_config=yaml.safe_load, still_figures=False)


def console_errors(browser):
    # The software renderer of a headless browser complains of its own slowness; that is no error.
    return [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def requests(browser):
    events = (json.loads(e["message"])["message"] for e in browser.get_log("performance"))
    urls = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]


def screenshot(browser):
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(browser.get_screenshot_as_base64())))
    return np.asarray(picture.convert("L"), dtype=float)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_page_opens_offline_and_draws(browser, run, width, height):
    page = reports.write_page(run, parse_config=yaml.safe_load)
    visit(browser, page, width, height)
    assert console_errors(browser) == []
    assert requests(browser) == []
    lines = browser.execute_script(
        "return document.querySelectorAll('.scatterlayer .trace').length"
    )
    assert lines >= 4  # loss and accuracy, train and test, two layers of energy
    assert browser.execute_script("return document.querySelectorAll('canvas').length") >= 1
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0  # nothing sticks out at the side
    assert screenshot(browser).std() > 5  # not blank
    missing_alt = "return [...document.images].filter(i => !i.alt).length"
    assert browser.execute_script(missing_alt) == 0


@pytest.mark.slow
def test_classes_toggle_and_a_point_shows_its_image(browser, run):
    visit(browser, quick_page(run))
    hidden = """
        const plot = document.querySelector('.plot[data-plot=features]');
        return plot.data.filter(t => t.visible === 'legendonly').length;"""
    assert browser.execute_script(hidden) == 0
    browser.execute_script("document.querySelector('button[data-show=no]').click()")
    assert browser.execute_script(hidden) == 10
    browser.execute_script("document.querySelector('button[data-show=all]').click()")
    assert browser.execute_script(hidden) == 0
    box = """
        const plot = document.querySelector('.plot[data-plot=features]');
        plot.emit('plotly_hover', {points: [{customdata: 7}]});
        const style = document.getElementById('picture').style;
        return [style.display, style.backgroundImage.slice(0, 20)];"""
    assert browser.execute_script(box) == ["block", 'url("data:image/png;']


# WCAG's contrast ratio of each piece of text with the background behind it.
CONTRAST = """
    const light = (color) => {
        const v = color.match(/\\d+/g).slice(0, 3).map((x) => x / 255)
            .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
    };
    const back = (node) => {
        for (; node; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if (!color.endsWith(', 0)')) return color;
        }
        return 'rgb(255, 255, 255)';
    };
    const text = 'h1, h2, p, span, strong, td, th, figcaption, footer, pre';
    return [...document.querySelectorAll(text)].filter((n) => !n.closest('.plot')).map((n) => {
        const pair = [light(getComputedStyle(n).color), light(back(n))].sort((x, y) => y - x);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
    });
"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_legends_stand_below_the_axis_and_plots_keep_their_height(browser, run, width, height):
    lines = (run / "metrics.jsonl").read_text()
    layers = {f"backbone.body.block{i}.conv": 1.0 + i for i in range(8)}
    extra = [{"step": step, "split": "monitor", "energy": layers} for step in (0, 190)]
    (run / "metrics.jsonl").write_text(lines + "".join(json.dumps(r) + "\n" for r in extra))
    visit(browser, quick_page(run), width, height)
    found = browser.execute_script(
        """
        return [...document.querySelectorAll('.plot')].filter((n) => n.layout).map((node) => {
          const box = (name) => { const found = node.querySelector(name);
                                  return found ? found.getBoundingClientRect() : null; };
          const title = box('.xtitle'), legend = box('.legend .bg');
          return [title && title.bottom, legend && legend.top, node._fullLayout._size.h,
                  Boolean(node.layout.scene), node.clientWidth];
        });
        """
    )
    assert len(found) >= 4
    for title, legend, inner, scene, wide in found:
        if title is not None and legend is not None and legend > 0:
            assert legend >= title - 1
        assert inner >= (0.7 * min(wide, 500) if scene else 200)


@pytest.mark.slow
def test_text_has_contrast(browser, run):
    visit(browser, quick_page(run))
    ratios = browser.execute_script(CONTRAST)
    assert len(ratios) > 10
    assert min(ratios) >= 4.5  # WCAG AA


def test_page_says_what_was_trained_and_how_to_repeat_it(run):
    page = reports.write_page(run, parse_config=yaml.safe_load)
    text = page.read_text()
    assert page == run / "report.html"
    for part in ("cnn9", "0.9771", "0.9802", "torch 2.13.0", "hypersphere train --head.m 4"):
        assert part in text
    assert "too few negatives to say" in text
    assert page.stat().st_size < 5e6
    assert sorted(p.suffix for p in (run / "figures").glob("roc-*")) == [".png", ".svg"]
    assert not list(run.glob("*.partial"))


def test_what_differs_from_the_defaults_comes_first_and_the_rest_is_folded(tmp_path, make_run):
    run = make_run(tmp_path / "run")
    config = _config.read(None, ["--hooks.monitor", "--seed", "7"], defaults=train.DEFAULT)
    (run / "config.yaml").write_text(_config.dump(config))
    text = quick_page(run).read_text()
    block = text[text.index("<h2>What was set</h2>") :]
    first, folded = block[: block.index("</section>")].split("<details>")
    for told in (
        "letters",
        "a_softmax",
        "600 steps",
        "annealing (base 100, ",
        "<td>seed</td><td>7</td>",
        "lr 0.05",
    ):
        assert told in first
    assert "lr 0.05" in first and "lr 0.05" not in folded and "<td>seed</td>" not in folded
    for usual in ("momentum 0.9", "gradient exact", "test_batch_size 500"):
        assert usual in folded and usual not in first


def test_settings_of_parts_that_are_not_known_are_still_told(tmp_path, make_run):
    run = make_run(tmp_path / "run")  # its head is of no name that is registered
    assert "<td>head</td><td>asoftmax</td><td>m 4</td>" in quick_page(run).read_text()
    (run / "config.yaml").write_text("model: [1]\nhead: 3\ndata: {name: 4, augment: []}\nhooks: a")
    assert "What was set" in quick_page(run).read_text()


def test_without_a_yaml_reader_the_settings_come_from_run_json(run):
    record = json.loads((run / "run.json").read_text())
    settings = {"model": {"name": "cnn18"}, "regularizers": {"mhe": {"s": 2}, "srip": None}}
    (run / "run.json").write_text(json.dumps(record | {"config": settings}))
    text = reports.write_page(run, still_figures=False).read_text()
    assert "<span>model</span><strong>cnn18</strong>" in text
    assert "<span>regularizers</span><strong>mhe</strong>" in text
    order = [text.index(f'data-plot="curve-{name}"') for name in ("loss", "accuracy")]
    assert order == sorted(order)


def test_comparison_highlights_what_differs(tmp_path, make_run):
    runs = [make_run(tmp_path / "one", m=2), make_run(tmp_path / "two", m=4)]
    page = reports.write_page(runs, tmp_path / "both.html", yaml.safe_load)
    text = page.read_text()
    assert '<td>head.m</td><td class="differs">2</td><td class="differs">4</td>' in text
    assert "<td>model.name</td>" not in text  # the same in both
    assert '"name":"one"' in text and '"name":"two"' in text  # short legends


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"step": 1}\n{"ste', "metrics.jsonl: 1 damaged line left out"),
        ("summary.json", "{", "summary.json is damaged"),
        ("run.json", "[1]", "run.json should hold an object, it holds a list"),
        ("features.npz", "no zip", "features.npz is damaged"),
        ("config.yaml", "a: [", "config.yaml could not be parsed"),
        ("config.yaml", None, "config.yaml is not there"),
        ("metrics.jsonl", None, "metrics.jsonl is not there"),
        ("features.npz", None, "features.npz is not there"),
    ],
)
def test_a_damaged_run_still_gives_a_page_that_says_so(run, name, content, message):
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    text = quick_page(run).read_text()
    assert "What is missing" in text
    assert message in text


def test_a_folder_without_a_run_is_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="it has none of run.json, config.yaml"):
        reports.write_page(tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(FileNotFoundError, match="expected a folder written by `hypersphere train`"):
        reports.write_page(tmp_path / "nothing")
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert "no run folder" in capsys.readouterr().err


def test_nan_features_and_metrics_are_left_out(run):
    arrays = dict(np.load(run / "features.npz"))
    arrays["features"][3] = np.nan
    np.savez(run / "features.npz", **arrays)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 999, "split": "train", "loss": NaN}\n')
    text = quick_page(run).read_text()
    assert "rows with NaN or infinite features left out" in text
    plots = json.loads(text.split('id="plots">')[1].split("</script>")[0])
    assert None in plots["curve-loss"]["data"][1]["y"]
    assert sum(len(t["x"]) for t in plots["features"]["data"][1:]) == 299


def test_names_cannot_break_out_of_the_page(tmp_path, make_run):
    run = make_run(tmp_path / "<script>alert(1)</script>".replace("/", "_"))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"commit": "</script><b>x"}))
    text = quick_page(run).read_text()
    assert "<script>alert" not in text
    assert "</script><b>x" not in text


def test_many_points_are_thinned_with_a_note(run):
    labels = np.arange(5000) % 3
    np.savez(
        run / "features.npz",
        features=np.random.default_rng(0).normal(size=(5000, 8)),
        labels=labels,
    )
    text = quick_page(run).read_text()
    assert "3,000 of 5,000 points are shown." in text


def test_watch_rewrites_while_the_run_grows_and_then_stops(run):
    said = []

    def grow(line):
        said.append(line)
        if len(said) < 3:
            with open(run / "metrics.jsonl", "a") as file:
                file.write(
                    json.dumps({"step": 500 + len(said), "split": "train", "loss": 0.1}) + "\n"
                )

    page = reports.watch([run], every=0.02, patience=0.3, say=grow)
    assert len(said) == 3
    assert "data-every" not in page.read_text()  # the last page is at rest
    assert '"done":true' in page.with_suffix(".news.js").read_text()


def test_command_writes_one_page_for_several_runs(tmp_path, capsys, make_run):
    runs = [make_run(tmp_path / name, m=m) for name, m in (("one", 2), ("two", 3))]
    output = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "-o", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    assert "Comparison of one, two" in output.read_text()


def test_identification_draws_a_curve_for_each_number_of_distractors(run):
    result = {"cmc": [[0.9, 1.0], [0.5, 0.75]], "distractors": [10, 1000], "ranks": [1, 2]}
    (run / "identification.json").write_text(json.dumps(result))
    data = reports.read_run(run)
    data.features, data.metrics = {}, []
    drawn = {still.stem: still.figure for still in stills(data)}
    lines = drawn["cmc-identification"].axes[0].lines
    assert [line.get_label() for line in lines] == ["10 distractors", "1,000 distractors"]
    assert list(lines[1].get_ydata()) == [0.5, 0.75]


def test_headline_and_baseline(run):
    rows = [
        {"name": "inputs alone", "accuracy": 0.6, "eer": 0.4},
        {"name": "plain network, softmax", "accuracy": 0.9, "eer": 0.1},
        {"name": "this run", "accuracy": 0.925, "eer": 0.075},
    ]
    gain = {"difference": 0.025, "low": 0.01, "high": 0.04, "pairs": 6000, "folds": 10}
    (run / "baseline.json").write_text(json.dumps({**gain, "rows": rows}))
    result = {"accuracy": 0.925, "interval": [0.91, 0.94], "positives": 3000, "negatives": 3000}
    result |= {"kind": "VerificationResult", "thresholds": [0.25, 0.75], "step": 9}
    result["tar_at_far"] = [{"far": 0.01, "tar": 0.8, "threshold": 0.5}]
    (run / "verification.json").write_text(json.dumps(result))
    text = quick_page(run).read_text()
    assert "<strong>92.50%</strong> of 6,000 pairs of classes never seen in training" in text
    assert "(95 %: 91.00 to 94.00)" in text
    assert "Against the plain network: +2.50 points (95 %: +1.00 to +4.00" in text
    assert text.index("this run") < text.index('data-plot="features"') < text.index("curve-loss")
    assert "verification of classes never seen in training" in text
    assert "VerificationResult" not in text.split("<script")[0]
    assert "80.00% at threshold 0.5000" in text
    assert "threshold on the cosine (mean of the folds)</td><td" in text


def test_thresholds_of_false_accept_rates(run):
    cuts = [
        {"value": 0.5, "far": 0.01, "low": 0.45, "high": 0.55, "gallery_size": 1},
        {"value": 0.75, "far": 0.001, "low": 0.7, "high": 0.8, "gallery_size": 1000},
        {"value": None, "far": 0.1},  # damaged
    ]
    (run / "threshold.json").write_text(json.dumps({"kind": "x", "thresholds": cuts, "step": 9}))
    text = quick_page(run).read_text()
    assert "of a pair of 0.01</td><td" in text and "0.5000 (95 %: 0.4500 to 0.5500)" in text
    assert "of a search among 1,000 of 0.001" in text and "0.7500 (95 %" in text


def test_seeds_are_pooled_and_differences_paired(tmp_path, make_run):
    runs = []
    for m, lift in ((2, 0.0), (4, 0.01)):
        for seed in range(3):
            run = make_run(tmp_path / f"m{m}-{seed}", m=m)
            record = json.loads((run / "run.json").read_text())
            (run / "run.json").write_text(json.dumps(record | {"seed": seed}))
            summary = json.loads((run / "summary.json").read_text())
            summary["last"]["accuracy"] = 0.9 + lift + 0.02 * seed + 0.001 * lift * seed
            (run / "summary.json").write_text(json.dumps(summary))
            runs.append(run)
    text = reports.write_page(runs, tmp_path / "both.html", yaml.safe_load).read_text()
    assert '<td>2</td><td class="number">3</td>' in text  # a method with three seeds
    assert "<td>4</td><td>+0.0100</td>" in text  # paired: the seeds' own spread is gone
    plots = json.loads(text.split('id="plots">')[1].split("</script>")[0])
    named = [t["name"] for t in plots["curve-accuracy"]["data"] if t.get("showlegend") is not False]
    assert named == ["2", "4"]
    dots = [t for t in plots["dots"]["data"] if t["mode"] == "markers"]
    assert [len(t["y"]) for t in dots] == [3, 3]


def test_a_flat_curve_is_not_shown_from_minus_one_to_one(run):
    with open(run / "metrics.jsonl", "a") as file:
        for step in (1, 2, 3):
            file.write(json.dumps({"step": step, "split": "test", "top5_error": 0.0}) + "\n")
    text = quick_page(run).read_text()
    plots = json.loads(text.split('id="plots">')[1].split("</script>")[0])
    assert plots["curve-top5_error"]["layout"]["yaxis"]["range"] == [0, 0.01]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_dark_mode_has_contrast_and_keyboards_reach_everything(browser, run, width, height):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        visit(browser, quick_page(run), width, height)
        back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, back[4:-1].split(","))) < 150
        assert min(browser.execute_script(CONTRAST)) >= 4.5
        # Every control can be reached and opened without a mouse.
        reached = browser.execute_script(
            "return [...document.querySelectorAll('summary, button')].map((n) => {"
            "n.focus(); return document.activeElement === n; })"
        )
        assert len(reached) >= 3 and all(reached)
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        summary = browser.find_element(By.CSS_SELECTOR, "details > summary")
        summary.send_keys(Keys.ENTER)
        assert browser.execute_script("return document.querySelector('details').open")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_news_arrive_in_place(browser, run):
    from hypersphere.reports.page import arrange, write_news

    page = reports.write_page(run, parse_config=yaml.safe_load, refresh=1, still_figures=False)
    visit(browser, page)
    zoomed = """
        const node = document.querySelector('.plot[data-plot=curve-loss]');
        return Plotly.relayout(node, {'xaxis.range': [1, 2]}).then(() => {
            document.querySelector('details').open = true; node.dataset.same = 'yes'; });"""
    browser.execute_script(zoomed)
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 5000, "split": "train", "loss": 0.125}) + "\n")
    write_news(page, arrange([run], run / "figures", yaml.safe_load, False), done=True)
    deadline = time.monotonic() + 60
    while browser.execute_script("return document.body.dataset.news") != "1":
        assert time.monotonic() < deadline, "the page did not look for news"
        time.sleep(0.1)
    time.sleep(0.5)
    kept = browser.execute_script(
        "const node = document.querySelector('.plot[data-plot=curve-loss]');"
        "const open = document.querySelector('details').open;"
        "return [node.layout.xaxis.range, node.dataset.same, open,"
        " node.data.some((t) => t.x.includes(5000))];"
    )
    assert kept == [[1, 2], "yes", True, True]


def test_page_has_neural_collapse_and_uniformity(run):
    text = quick_page(run).read_text(encoding="utf-8")
    assert "Geometry of the features" in text
    assert "NC1 within-class variability" in text and "uniformity (t = 2" in text


def test_classifier_of_the_checkpoint_gives_all_four_measures(run):
    import torch

    from hypersphere.reports.feature_geometry import geometry_tables
    from hypersphere.reports.run_data import read_run
    from hypersphere.training.run.checkpoint import save_weights

    data = read_run(run)
    kept = data.features.get("directions", data.features["features"])
    place = run / "checkpoints" / "step-00000001"
    place.mkdir(parents=True, exist_ok=True)
    classes = int(data.features["labels"].max()) + 1
    weight = {"head.weight": torch.randn(classes, kept.shape[1])}
    save_weights(place / "model.safetensors", weight)
    _, tables = geometry_tables(data)
    rows = {row[0]: row for row in tables[1][1]}
    assert rows["NC3 distance from duality"][2] != "-" and rows["NC4 not the nearest mean"][2]


def test_the_bias_of_the_classifier_counts_as_much_as_the_features_are_short(run):
    import torch

    from hypersphere.reports.feature_geometry import geometry_tables
    from hypersphere.reports.run_data import read_run
    from hypersphere.training.run.checkpoint import save_weights

    data = read_run(run)
    y = np.arange(40) % 2
    directions = np.eye(2)[y] + 0.01 * np.random.default_rng(0).normal(size=(40, 2))
    place = run / "checkpoints" / "step-00000002"
    place.mkdir(parents=True, exist_ok=True)
    classifier = {"head.weight": torch.eye(2), "head.bias": torch.tensor([9.0, 0.0])}
    save_weights(place / "model.safetensors", classifier)
    found = []
    for length in (1.0, 100.0, "one", None):
        data.features = {"directions": directions, "labels": y}
        if length is not None:
            data.features["lengths"] = np.full(40, length)
        note, tables = geometry_tables(data)
        found.append({row[0]: row for row in tables[1][1]}["NC4 not the nearest mean"][2])
    assert found == ["50.00 %", "0.00 %", "-", "-"] and "NC4 is left out" in note

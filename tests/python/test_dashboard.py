"""The dashboard in headless Chromium with a real service: every page, a live study, a restart, and many runs."""
from __future__ import annotations

import json
import os
import pathlib
import socket
import sys
import unittest

import browser

from fixture import TRAIN, InDirectory, Service, study_of

TABS = ("runs", "curves", "learning", "allocations", "explain", "specification")
WIDTHS = (400, 1280, 2000)

# Prints a line, waits for a file, prints another line, and trains.
TALKING = """
import os, time, scalelab

with scalelab.run() as run:
    print("first line", flush=True)
    while not os.path.exists("GO"):
        time.sleep(0.02)
    print("second line", flush=True)
    for step in range(12):
        run.step(loss=1.0)
"""

# Waits for a file and fails. The next attempt succeeds, and prints less.
FAILING = """
import os, time, scalelab

with scalelab.run() as run:
    if not os.path.exists("GO"):
        print("output of attempt 1 " * 100, flush=True)
        while not os.path.exists("GO"):
            time.sleep(0.02)
        raise RuntimeError("it failed")
    print("output of attempt 2", flush=True)
    for step in range(12):
        run.step(loss=1.0)
"""

# Reports losses, waits for a file, and reports accuracies.
EVALUATING = """
import os, time, scalelab

with scalelab.run() as run:
    for step in range(10):
        run.step(loss=1.0)
    run.epoch()
    while not os.path.exists("GO"):
        time.sleep(0.02)
    for epoch in range(2):
        run.step(loss=1.0)
        run.epoch(accuracy=0.5)
"""

# The first attempt of each run fails, and with a large momentum the second one does, too.
SECOND_ATTEMPT = """
import os, scalelab

with scalelab.run() as run:
    tried = f"{os.path.dirname(__file__)}/tried-{run.spec['momentum']}-{run.spec['seed']}"
    if not os.path.exists(tried):
        open(tried, "w").close()
        raise RuntimeError("the first attempt")
    if run.spec["momentum"] > 0.95:
        raise RuntimeError("the momentum is too large")
    for step in range(run.spec["max_steps"]):
        run.step(loss=1.0)
"""

# Reports six losses, waits for a file, reports three more, and waits for another file; on one rank, without waiting.
GROWING = """
import os, time, scalelab

with scalelab.run() as run:
    for step in range(12):
        wait = {6: "GO", 9: "END"}.get(step)
        while wait and run.world_size > 1 and not os.path.exists(f"{os.path.dirname(__file__)}/{wait}"):
            time.sleep(0.02)
        if step in (5, 8):  # the last step before a wait
            time.sleep(scalelab.events.FLUSH_AFTER)  # so that this step is written at once, with the steps before it
        run.step(loss=1 / (step + 1), total_s=0.01)
"""

# On one rank, fails after its first step. On two ranks, reports losses.
FAILING_FIRST = """
import scalelab

with scalelab.run() as run:
    run.step(loss=1.0)
    if run.world_size == 1:
        raise RuntimeError("out of memory")
    for step in range(11):
        run.step(loss=0.5)
"""

# A short run: waits while a file exists, and reports three losses.
SHORT = """
while [ -e HOLD ]; do sleep 0.05; done
for step in 1 2 3; do
  echo '{"time":'$step',"event":"step","step":'$step',"metrics":{"train/loss":1.5}}' >> "$SCALELAB_EVENTS"
done
echo '{"time":4,"event":"finish"}' >> "$SCALELAB_EVENTS"
"""

# Submits a number of studies with the names small-1, small-2 and so on.
SUBMIT_MANY = """
    const [text, count, done] = arguments;
    import(`${location.origin}/assets/api.mjs`).then(async ({call}) => {
      const {spec} = await call('ParseStudy', {text});
      for (let i = 1; i <= count; ++i) await call('CreateStudy', {spec: {...spec, study: `small-${i}`}});
      done('submitted');
    }).catch((error) => done(String(error)));"""

# Limits the number of studies in an answer, so that few studies have several pages.
FEW_PER_ANSWER = """
    const fetched = window.fetch;
    window.fetch = (path, options) => {
      if (path !== 'api/ListStudies') return fetched(path, options);
      const request = JSON.parse(options.body);
      return fetched(path, {...options, body: JSON.stringify({...request, page_size: Math.min(request.page_size, arguments[0])})});
    };"""

# Draws pictures of results that are hard to draw instead of the page. tests/unit/client/picture_samples.h has similar results for
# the pictures of the command line. Passes the number of pictures, the number of marks in the pictures of curves with failed
# cells, and the last notes of the pictures of 200 cells.
HARD_PICTURES = """
    const done = arguments[0], load = (name) => import(`${location.origin}/assets/${name}.mjs`);
    Promise.all([load('plot'), load('curves')]).then(([{linePlot, forestPlot}, {curvePicture}]) => {
      // Points at 1, 2, 4 ... ranks, whose intervals have this half width relative to the value.
      const points = (count, first, half) => Array.from({length: count}, (_, k) => {
        const y = first * 2 ** k;
        return {x: 2 ** k, y, low: y * (1 - half), high: y * (1 + half), note: 'n=5', open: k % 2 === 1};
      });
      const lines = (series, count, first, half) => linePlot({title: 'Throughput', xTitle: 'ranks', yTitle: 'samples/s',
        ideals: [{name: 'ideal', at: (x) => first * x}], series: Array.from({length: series}, (_, i) => (
          {name: `engine=framework-${i}/strategy`, points: points(count, first * (1 + i / 10), half)}))});
      const differences = (rows, effect) => forestPlot('Differences', Array.from({length: rows}, (_, i) => ({
        name: `MMMM / WWWW, learning_rate=0.00${i} momentum=0.9 model=resnet50, ${2 ** i} ranks`,
        effect: effect * (i % 3 - 1), low: effect * (i % 3 - 1.5), high: effect * (i % 3 - 0.5)})));
      // The cells of these series at 1, 2, 4 and 8 ranks. The last `failed` cells of each series have failed.
      const estimate = (mean) => ({mean, low: 0.98 * mean, high: 1.02 * mean});
      const cells = (series, failed) => Array.from({length: series}, (_, i) => ({
        key: {engine: `framework-${i}/strategy`, precision: 'fp32'}, baseline_ranks: 1, points: [1, 2, 4, 8].map((ranks, k) => {
          if (k >= 4 - failed) return {ranks, asked: 5, state: i % 2 === 0 ? 'FAILED' : 'OUT_OF_MEMORY'};
          const speedup = 1 / (0.02 * (i + 1) + (1 - 0.02 * (i + 1)) / ranks);
          return {ranks, n: 5, asked: 5, state: 'OK', throughput: estimate(800 * speedup), speedup: estimate(speedup),
            efficiency: estimate(speedup / ranks)};
        })}));
      const curves = (series) => ['throughput', 'speedup', 'efficiency'].map((measure) => curvePicture(series, measure, 'strong'));
      const [many, oneFailed] = [cells(12, 2), [...cells(1, 0), ...cells(1, 4)]];  // of one series, all cells have failed
      const [failed, large] = [[...curves(many), ...curves(oneFailed)], curves(cells(50, 0))];
      document.getElementById('main').replaceChildren(lines(1, 1, 800, 0.02), lines(1, 10, 800, 0.02), lines(12, 10, 800, 0.02),
        lines(12, 1, 800, 0.02), lines(2, 6, 800, 1e-7), lines(2, 6, 800, 40), lines(3, 18, 70, 0.02), lines(1, 4, 1e-6, 0.5),
        differences(1, 0.02), differences(12, 0.02), differences(30, 1e-5), differences(5, 10), ...failed, ...large);
      done([document.querySelectorAll('svg.plot').length, failed.map((one) => one.querySelectorAll('svg.plot .mark').length),
        large.map((one) => one.lastChild.textContent)]);
    }).catch((error) => done(String(error)));"""

# Records in `painted` when the heat map of the first page is painted, in milliseconds after the begin of the page load.
PAINTED = """
    window.painted = 0;
    const look = () => {
      if (document.querySelector('.heat canvas')?.height > 200) requestAnimationFrame(() => { window.painted = performance.now(); });
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);"""

# Scrolls the heat map. Passes the sorted times between its frames to the last argument.
SCROLL = """
    const done = arguments[0], box = document.querySelector('.heat'), times = [];
    let last = performance.now();
    const step = () => {
      const now = performance.now();
      times.push(now - last);
      last = now;
      box.scrollTop += 40;
      if (times.length < 60) requestAnimationFrame(step);
      else done(times.slice(1).sort((a, b) => a - b));
    };
    requestAnimationFrame(step);"""

# Renews an element twice. Passes whether the focused link is the same element after the first time, and its address after
# the second time, when the rows have moved.
RENEW = """
    const done = arguments[0];
    import(`${location.origin}/assets/dom.mjs`).then(({h, renew}) => {
      const box = h('div');
      document.getElementById('main').append(box);
      const rows = (step, ...runs) => runs.map((run) => h('p', null, h('a', {href: `#/runs/${run}`}, run), ` step ${step}`));
      renew(box, rows(1, '1', '2'));
      const link = box.querySelectorAll('a')[1];
      link.focus();
      renew(box, rows(2, '1', '2'));
      const same = document.activeElement === link && box.textContent;
      renew(box, rows(3, '2', '3'));
      const moved = document.activeElement.getAttribute('href');
      box.remove();
      done([same, moved]);
    }).catch((error) => done(String(error)));"""

# Shows the curves of a study that ends while the server computes them. Passes the number of requests for curves.
ENDING = """
    const done = arguments[0], fetched = window.fetch;
    import(`${location.origin}/assets/curves.mjs`).then(async ({curvesTab}) => {
      const view = {name: 'studies/1', study: {state: 'RUNNING'}, signal: new AbortController().signal};
      let requests = 0;
      window.fetch = async (path, options) => {
        if (path !== 'api/GetCurve') return fetched(path, options);
        ++requests;
        view.study = {state: 'SUCCEEDED'};
        return new Response('{}');
      };
      await curvesTab(document.createElement('div'), view);
      done(requests);
    }).catch((error) => done(String(error))).finally(() => { window.fetch = fetched; });"""

# Shows a learning chart while the server does not answer the first request for its points. Passes whether the page
# reported that the server does not answer, the text of the chart afterwards, and the dashes of the lines in its legend.
INTERRUPTED = """
    const done = arguments[0], fetched = window.fetch, leave = new AbortController(), works = [];
    const points = 'data: {"key":"train/loss","step":["0","9"],"time":[0,9],"value":[2,1]}\\n\\nevent: end\\ndata: {}\\n\\n';
    let refuse = false;
    window.fetch = async (path, options) => {
      if (path !== 'api/ReadPoints') return fetched(path, options);
      if (!refuse) return new Response(points);
      refuse = false;
      throw new TypeError('the connection is refused');
    };
    addEventListener('scalelab-connection', ({detail}) => works.push(detail), {signal: leave.signal});
    import(`${location.origin}/assets/learning.mjs`).then(async ({learningChart}) => {
      const chart = await learningChart(() => true, leave.signal);
      document.getElementById('main').append(chart.element);
      refuse = true;
      await chart.show(['1', '2'].map((run) => ({name: `studies/1/runs/${run}`, label: `run ${run}`})));
      done([works.includes(false), chart.element.querySelector('.chart-values').textContent,
        [...chart.element.querySelectorAll('.legend path')].map((line) => line.getAttribute('stroke-dasharray'))]);
      leave.abort();
      chart.element.remove();
    }).catch((error) => done(String(error))).finally(() => { window.fetch = fetched; });"""

# Shows a learning chart of three runs: the points of the first cannot be read, and the others have different metrics. Passes the
# offered metrics, the last values, and the notes below the chart, and the notes after the points can be read.
UNREADABLE = """
    const done = arguments[0], fetched = window.fetch, leave = new AbortController();
    const end = 'event: end\\ndata: {}\\n\\n';
    const points = (key) => `data: {"key":"${key}","step":["0","9"],"time":[0,9],"value":[2,1]}\\n\\n${end}`;
    const damaged = 'event: error\\ndata: {"error":{"code":"INTERNAL","message":"the points are damaged"}}\\n\\n';
    let answers = {'runs/1': damaged, 'runs/2': points('eval/accuracy'), 'runs/3': points('train/loss')};
    window.fetch = async (path, options) => {
      if (path !== 'api/ReadPoints') return fetched(path, options);
      const {run, key} = JSON.parse(options.body), answer = answers[run];
      return new Response(key && !answer.includes(key) && !answer.includes('error') ? end : answer);
    };
    import(`${location.origin}/assets/learning.mjs`).then(async ({learningChart}) => {
      const chart = await learningChart(() => true, leave.signal);
      document.getElementById('main').append(chart.element);
      const runs = Object.keys(answers).map((name) => ({name, label: name}));
      const notes = () => [...chart.element.querySelectorAll('.error')].map((note) => note.textContent);
      await chart.show(runs);
      const results = [[...chart.element.querySelectorAll('#metric option')].map(({value}) => value),
        chart.element.querySelector('.chart-values').textContent, notes()];
      answers['runs/1'] = points('train/loss');
      await chart.show(runs);
      done([...results, chart.element.querySelector('.chart-values').textContent, notes()]);
      leave.abort();
      chart.element.remove();
    }).catch((error) => done(String(error))).finally(() => { window.fetch = fetched; });"""

# Draws the speedups of three series with two baselines. Passes the names of the ideal lines, and whether each has at least two points.
IDEALS = """
    const done = arguments[0];
    import(`${location.origin}/assets/curves.mjs`).then(({curvePicture}) => {
      const series = [1, 2, 2].map((baseline_ranks, i) => ({key: {engine: `engine-${i}`}, baseline_ranks,
        points: [1, 2, 4].filter((ranks) => ranks >= baseline_ranks).map((ranks) => (
          {ranks, n: 1, asked: 1, speedup: {mean: 0.7 * ranks / baseline_ranks}}))}));
      const lines = [...curvePicture(series, 'speedup').querySelectorAll('path.rule')].filter((line) => line.textContent);
      done(lines.map((line) => [line.textContent, line.getAttribute('d').split(/[ML]/).filter(Boolean).length > 1]));
    }).catch((error) => done(String(error)));"""

# Draws points with negative values. Passes for each picture the distances of the marks from the top, and the numbers of its axis.
NEGATIVE = """
    const done = arguments[0];
    import(`${location.origin}/assets/plot.mjs`).then(({linePlot}) => {
      const pictures = [[-3, -2], [-1, 2], [0, 0]].map((values) => linePlot({title: 'Gain', xTitle: 'ranks', yTitle: 'gain',
        series: [{name: 'one', points: values.map((y, i) => ({x: i + 1, y}))}]}));
      done(pictures.map((picture) => [[...picture.querySelectorAll('svg.plot .mark')].map((e) => Number(e.getAttribute('cy'))),
        [...picture.querySelectorAll('text[text-anchor=end]')].map((e) => Number(e.textContent))]));
    }).catch((error) => done(String(error)));"""

# Passes the texts of these times in seconds.
DURATIONS = """
    const [seconds, done] = arguments;
    import(`${location.origin}/assets/dom.mjs`).then(({duration}) => done(seconds.map(duration))).catch((error) => done(String(error)));"""

# Compares studies with 40 differences and a note on each. Passes the number of drawn differences, whether the page names the
# number of all differences, and the number of notes.
MANY_DIFFERENCES = """
    const done = arguments[0], fetched = window.fetch, leave = new AbortController();
    const groups = Array.from({length: 40}, (_, i) => ({ranks: i + 1, notes: [`a note on ${i + 1} ranks`, 'a note on all'],
      pairs: [{first: 'a', second: 'b', effect: {mean: 0.1, low: 0, high: 0.2}, verdict: 'FASTER'}]}));
    window.fetch = async (path, options) => {
      if (path === 'api/CompareCells') return new Response(JSON.stringify({axis: 'engine', groups}));
      return path === 'api/GetCurve' ? new Response('{"study":"studies/1"}') : fetched(path, options);
    };
    import(`${location.origin}/assets/compare.mjs`).then(async ({comparePage}) => {
      const page = document.createElement('main');
      await comparePage(page, {query: new URLSearchParams('studies=1&axis=engine'), signal: leave.signal});
      done([page.querySelectorAll('.forest .mark').length, page.textContent.includes('the first 30 of 40 differences'),
        page.textContent.match(/a note on/g).length]);
    }).catch((error) => done(String(error))).finally(() => { window.fetch = fetched; });"""

# Changes the text of the page for new studies before the first answer about it arrives.
CHANGED_MEANWHILE = """
    const fetched = window.fetch;
    window.fetch = async (path, options) => {
      const response = await fetched(path, options);
      if (path !== 'api/ParseStudy') return response;
      window.fetch = fetched;
      const text = document.getElementById('study');
      text.value = text.value.replace('my-study', 'changed-study');
      text.dispatchEvent(new Event('input'));
      return response;
    };"""

# Calls a server that accepts requests and sends no response, and one whose response stops before its first byte. Timers end
# at once. Passes the outcome of a call and of a stream that ends by itself, whether the page reported that the server does
# not answer, and the message of a stream of states whose second request is answered.
SILENT = """
    const done = arguments[0], fetched = window.fetch, later = window.setTimeout, leave = new AbortController();
    const aborted = (signal, act) => signal?.addEventListener('abort', () => act(signal.reason));
    const silent = (path, {signal}) => new Promise((resolve, reject) => aborted(signal, reject));
    const endless = (signal) => new ReadableStream({start: (body) => aborted(signal, (reason) => body.error(reason))});
    const stopped = async (path, {signal}) => new Response(endless(signal));
    const outcome = (promise) => promise.then(() => 'answered', (error) => `${error.code}: ${error.message}`);
    let works = [];
    addEventListener('scalelab-connection', ({detail}) => works.push(detail), {signal: leave.signal});
    import(`${location.origin}/assets/api.mjs`).then(async ({call, collect, follow}) => {
      const results = [], states = [];
      window.setTimeout = (work) => later(work);
      for (const server of [silent, stopped]) {
        window.fetch = server;
        works = [];
        results.push(await outcome(call('GetStudy')), works.includes(false), await outcome(collect('ReadPoints', {})));
      }
      window.fetch = (path, options) => {
        window.fetch = async () => new Response('data: {"state":"RUNNING"}\\n\\nevent: end\\ndata: {}\\n\\n');
        return silent(path, options);
      };
      await follow('WatchStudy', {}, ({state}) => states.push(state), leave.signal);
      done([...results, ...states]);
    }).catch((error) => done(String(error))).finally(() => {
      leave.abort();
      Object.assign(window, {fetch: fetched, setTimeout: later});
    });"""

# A server that ends the stream after each message. Returns the delays before the first attempts to open it again.
ENDED = """
    const done = arguments[0], fetched = window.fetch, later = window.setTimeout, leave = new AbortController();
    import(`${location.origin}/assets/api.mjs`).then(async ({follow}) => {
      const delays = [];
      window.setTimeout = (work, ms) => {
        if (ms > 10_000) return later(work, ms);
        if (delays.push(ms) === 7) leave.abort();
        return later(work);
      };
      window.fetch = async () => new Response('data: {"state":"RUNNING"}\\n\\n');
      await follow('WatchStudy', {}, () => {}, leave.signal);
      done(delays);
    }).catch((error) => done(String(error))).finally(() => {
      leave.abort();
      Object.assign(window, {fetch: fetched, setTimeout: later});
    });"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipIf(browser.available(), browser.available())
class DashboardTest(InDirectory):
    def setUp(self) -> None:
        super().setUp()
        os.chdir(self.dir)
        self.write("train.py", TRAIN)
        # A restarted server must have the same port.
        self.service = Service(f"web: 127.0.0.1:{free_port()}\nlocal_slots: 2\n")
        self.addCleanup(self.service.close)
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)
        self.browser.resize(1280, 900)
        self.base = ""  # the address of the dashboard
        self.expected: tuple[str, ...] = ()  # parts of the console messages that the test causes

    def tearDown(self) -> None:
        self.check_silent()
        super().tearDown()

    def link(self, *words: str) -> str:
        link = self.service.run("web", *words).strip()
        self.base = link.split("#")[0]
        return link

    def log_in(self, *words: str) -> None:
        self.browser.open(self.link(*words))
        self.browser.wait_text("Newest first" if "studies/" in self.service.run("study", "list", "-o", "csv") else "no studies yet")

    def go(self, page: str, text: str) -> None:
        self.browser.run("location.hash = arguments[0]", page)
        self.browser.wait_text(text)

    def submit(self, **more) -> str:
        return self.service.run("study", "submit", self.write("study.yaml", json.dumps(study_of(**more)))).split()[0]

    def check_silent(self) -> None:
        """Checks that the console has no unexpected message, and that all requests went to the server of the page."""
        messages = [line for line in self.browser.console() if not any(part in line for part in self.expected)]
        self.assertEqual(messages, [])
        self.assertEqual([url for url in self.browser.requested() if not url.startswith((self.base, "data:", "blob:"))], [])

    def check_page(self, name: str) -> None:
        """Checks the page at all widths, and in dark colours."""
        for width in WIDTHS:
            self.browser.resize(width, 900)
            self.browser.wait_for("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
            self.assertEqual(self.browser.overflow(), [], f"{name} at {width} pixels")
            self.assertEqual(self.browser.faults_of_texts(), [], f"{name} at {width} pixels")
            self.assertEqual(self.browser.violations(), [], f"{name} at {width} pixels")
            self.browser.screenshot(f"{name}-{width}")
        self.browser.dark(True)
        self.assertEqual(self.browser.violations(), [], f"{name}, dark")
        self.browser.screenshot(f"{name}-dark")
        self.browser.dark(False)
        self.browser.resize(1280, 900)
        self.check_silent()

    def test_every_page_works_at_each_width_in_light_and_dark(self) -> None:
        study = self.submit(matrix={"ranks": [1, 2], "momentum": [0.5, 0.9]}, repeats=3)
        other = self.submit(study="other", matrix={"ranks": [1, 2], "momentum": [0.5, 0.9]}, repeats=3)
        for name in (study, other):
            self.service.run("study", "wait", name)
        number = study.split("/")[1]
        self.log_in()
        self.check_page("studies")
        for tab, text in zip(TABS, ("List of runs", "95% interval", "Metric", "Allocations", "Why the rest", "as submitted")):
            self.go(f"#/studies/{number}/{tab}", text)
            if tab == "learning":
                self.browser.wait_for("return document.querySelectorAll('.chart canvas').length > 0")
            self.check_page(f"study-{tab}")
        run = self.service.json("run", "list", study)["runs"][0]["name"].rsplit("/", 1)[1]
        self.go(f"#/runs/{run}", "Hardware and software")
        self.browser.wait_for("return document.querySelectorAll('.chart canvas').length > 0")
        self.browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        self.browser.wait_text("train.py, SHA-256 ")
        self.check_page("run")
        self.go("#/compare", "Studies 1 to 2 of 2")
        self.check_page("compare-choice")
        self.go(f"#/compare?studies={number},{other.split('/')[1]}", "First relative to second")
        self.check_page("compare")
        self.go(f"#/compare?studies={number}&axis=momentum", "Differences in throughput (momentum)")
        self.browser.wait_text("0.5 / 0.9")
        self.check_page("compare-axis")
        self.go("#/cluster", "Allocations")
        self.check_page("cluster")
        self.go("#/submit", "Submit a study")
        self.check_page("submit")
        self.go("#/nowhere", "there is no page")
        self.assertGreater(len(self.browser.requested()), 20)

    def test_a_live_study_survives_a_restart_of_the_server(self) -> None:
        hold = pathlib.Path(self.write("hold", ""))
        os.environ["HOLD_BACK"] = str(hold)
        self.service.stop()
        self.service.start()  # with HOLD_BACK
        study = self.submit(matrix={"ranks": [1]}, repeats=2)
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}", "1 running")
        self.check_silent()
        # Chromium itself reports refused connections, and the 503 of a server that is stopping.
        self.expected = (
            "503 (Service Unavailable)", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE",
            "ERR_INCOMPLETE_CHUNKED_ENCODING",
        )  # fmt: skip
        self.service.stop()
        self.browser.wait_text("does not answer")
        self.assertEqual(self.browser.violations(), [])
        self.service.start()
        self.browser.wait_for("return document.getElementById('banner').hidden")
        hold.unlink()
        self.browser.wait_text("2 succeeded")
        # The grid shows the new state too.
        self.browser.wait_for("return [...document.querySelectorAll('.legend li')].some((e) => e.textContent === 'succeeded 2')")

    def test_the_curves_of_a_running_study_grow(self) -> None:
        self.write("train.py", GROWING)
        study = self.submit(matrix={"ranks": [1, 2]}, repeats=1, order="listed")
        self.log_in()
        page = f"#/studies/{study.split('/')[1]}"
        self.go(page, "1 running, 1 succeeded")
        self.browser.wait_text("Runs 1 to 2 of 2")
        self.check_page("live-runs")
        learning = "return document.querySelector('.chart-values')?.textContent.includes(arguments[0])"
        self.go(f"{page}/learning", "Metric")
        self.browser.wait_for(learning, "ranks=2 repeat 0: 0.16667")
        self.check_page("live-learning")
        self.write("GO", "")
        self.browser.wait_for(learning, "ranks=2 repeat 0: 0.11111")
        marks = "return document.querySelectorAll('figure svg.plot .mark').length === arguments[0]"
        self.go(f"{page}/curves", "95% interval")
        self.browser.wait_for(marks, 1)
        self.check_page("live-curves")
        self.assertIn("1 running, 1 succeeded", self.browser.text())
        self.write("END", "")
        self.browser.wait_for(marks, 2)

    def test_the_choice_of_a_measure_keeps_the_focus_while_curves_grow(self) -> None:
        self.write("train.py", GROWING)
        study = self.submit(matrix={"ranks": [1, 2]}, repeats=1, order="listed")
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}/curves", "95% interval")
        marks = "return document.querySelectorAll('figure svg.plot .mark').length === arguments[0]"
        self.browser.wait_for(marks, 1)
        self.browser.focus("#measure")
        self.browser.press("Down")
        self.browser.wait_text("Speedup (strong scaling)")
        self.browser.run("window.measure = document.activeElement; window.table = document.querySelector('#panel .table')")
        for name in ("GO", "END"):
            self.write(name, "")
        self.browser.wait_for(marks, 2)
        kept = "return [document.activeElement === window.measure, window.measure.value, window.table.isConnected]"
        self.assertEqual(self.browser.run(kept), [True, "speedup", True])
        self.assertIn("Speedup (strong scaling)", self.browser.text())

    def test_the_picture_of_speedups_has_an_ideal_line_for_each_baseline(self) -> None:
        study = self.submit(matrix={"ranks": [1, 2]}, repeats=2)
        other = self.submit(study="other", matrix={"ranks": [2]}, repeats=2)
        for name in (study, other):
            self.service.run("study", "wait", name)
        self.log_in()
        self.assertEqual(self.browser.run_async(IDEALS), [["ideal, baseline ranks 1", True], ["ideal, baseline ranks 2", True]])
        self.go(f"#/compare?studies={study.split('/')[1]},{other.split('/')[1]}", "First relative to second")
        self.assertEqual(self.browser.run("return [...document.querySelectorAll('path.rule title')].map((e) => e.textContent)"),
                         ["ideal, baseline ranks 1", "ideal, baseline ranks 2", "ideal"])  # of speedups, and of efficiencies

    def test_a_comparison_names_the_number_of_all_differences_and_shows_all_notes(self) -> None:
        self.log_in()
        self.go("#/submit", "Submit a study")  # a page that makes no calls by itself
        self.assertEqual(self.browser.run_async(MANY_DIFFERENCES), [30, True, 41])

    def test_learning_curves_of_other_runs_are_shown_if_the_first_run_has_no_metric(self) -> None:
        self.write("train.py", FAILING_FIRST)
        study = self.submit(matrix={"ranks": [1, 2]}, repeats=1, order="listed", retry={"max": 0})
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}", "1 succeeded, 1 failed")
        self.go(f"#/studies/{study.split('/')[1]}/learning", "Choose runs")
        self.browser.wait_for("return document.querySelector('.chart-values').textContent.includes('ranks=2 repeat 0: 0.5')")
        self.assertNotIn("has reported a metric yet", self.browser.text())
        self.browser.run("document.querySelector('details').open = true")
        self.browser.click(".choices label", "ranks=2")
        self.browser.wait_text("The run has not reported a metric yet.")
        (failed,) = [run["name"] for run in self.service.json("run", "list", study)["runs"] if run["state"] == "FAILED"]
        self.go(f"#/runs/{failed.rsplit('/', 1)[1]}", "Retry run")
        self.browser.wait_for("return document.getElementById('log-stream')")
        self.browser.run("const e = document.getElementById('log-stream'); e.value = 'STDERR'; e.dispatchEvent(new Event('change'))")
        self.browser.wait_for("return document.querySelector('.log').textContent.includes('RuntimeError: out of memory')")
        self.check_page("run-failed")

    def test_the_learning_curve_of_every_run_that_has_started_can_be_chosen(self) -> None:
        hold = pathlib.Path(self.write("hold", ""))
        self.write("short.sh", SHORT.replace("HOLD", str(hold)))
        fixed = {"engine": "custom", "model": "none", "dataset": "none", "max_steps": 3, "command": ["sh", "./short.sh"]}
        study = self.submit(fixed=fixed, matrix={"ranks": [1]}, repeats=230)
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}/learning", "Choose runs")
        self.browser.run("document.querySelector('details').open = true")
        self.browser.wait_text("Runs 1 to ")
        self.assertNotIn("of 230", self.browser.text())  # the first run waits
        hold.unlink()
        self.browser.wait_text("Runs 1 to 50 of 230")
        for first in (51, 101, 151, 201):
            self.browser.click(".chooser button", "Next")
            self.browser.wait_text(f"Runs {first} to {min(first + 49, 230)} of 230")
        last = self.browser.run("const e = document.querySelector('.choices label:last-child'); e.click(); return e.textContent")
        self.browser.wait_for("return [...document.querySelectorAll('.legend li')].some((e) => e.textContent === arguments[0])", last)

    def test_all_of_many_studies_can_be_reached(self) -> None:
        self.service.run("admin", "drain")
        self.log_in()
        study = study_of(matrix={"ranks": [1]}, repeats=1)
        study["fixed"]["command"] = ["true"]
        self.assertEqual(self.browser.run_async(SUBMIT_MANY, json.dumps(study), 130), "submitted")
        self.browser.run(FEW_PER_ANSWER, 60)
        for shown in (120, 130):  # whole answers
            self.browser.click("main button", "Show more")
            self.browser.wait_for("return document.querySelectorAll('main tbody tr').length === arguments[0]", shown)
        self.go("#/compare", "Studies 1 to 50 of 130")
        for first in (51, 101):
            self.browser.click(".chooser button", "Next")
            self.browser.wait_text(f"Studies {first} to {min(first + 49, 130)} of 130")
        choose = "[...document.querySelectorAll('.choices label')].find((e) => e.textContent === arguments[0]).firstChild.click()"
        self.browser.run(choose, "3 small-3")
        self.browser.run("const e = document.getElementById('search'); e.value = 'SMALL 29'; e.dispatchEvent(new Event('input'))")
        self.browser.wait_text("Studies 1 to 2 of 2")
        self.browser.run(choose, "129 small-129")
        self.browser.wait_text("Chosen: 3, 129.")
        self.check_page("compare-many")

    def test_texts_of_pictures_are_on_nothing_and_within_the_picture(self) -> None:
        self.log_in()
        self.go("#/submit", "Submit a study")  # a page that is not renewed
        drawn = [21, [24, 24, 24, 4, 4, 4], ["The picture shows the first 12 of 50 series; the tables have all."] * 3]
        for width in WIDTHS:
            self.browser.resize(width, 900)
            self.assertEqual(self.browser.run_async(HARD_PICTURES), drawn)
            self.assertEqual(self.browser.overflow(), [], f"{width} pixels")
            self.assertEqual(self.browser.faults_of_texts(), [], f"{width} pixels")
            self.browser.screenshot(f"hard-pictures-{width}")

    def test_pictures_show_negative_values(self) -> None:
        self.log_in()
        negative, both, zero = self.browser.run_async(NEGATIVE)
        for marks, numbers in (negative, both):
            self.assertGreater(marks[0], marks[1] + 20)  # y grows downwards
            self.assertIn(0, numbers)
        self.assertEqual((max(negative[1]), min(negative[1]) <= -3), (0, True))
        self.assertEqual(zero[0][0], zero[0][1])
        self.assertGreater(len(zero[1]), 1)

    def test_durations_are_rounded_once(self) -> None:
        self.log_in()
        texts = {0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 10.4: "10 s", 59.4: "59 s", 59.6: "1 min 0 s", 119.7: "2 min 0 s",
                 3599.4: "59 min 59 s", 3599.6: "1 h 0 min", 7199: "2 h 0 min", 10_779: "3 h 0 min", 48 * 3600 - 31: "47 h 59 min",
                 48 * 3600 - 29: "2 days", 60 * 3600: "3 days"}
        self.assertEqual(self.browser.run_async(DURATIONS, list(texts)), list(texts.values()))

    def test_a_curve_shows_missing_repeats_and_notes_of_points(self) -> None:
        self.write("train.py", SECOND_ATTEMPT)
        study = self.submit(matrix={"ranks": [1], "momentum": [0.9, 0.99]}, repeats=2, retry={"max": 1, "on": ["trainer_error"]})
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}/curves", "95% interval")
        self.browser.wait_text("0/2")
        self.browser.wait_text("1 rank: 2 runs succeeded only after a failed attempt")

    def test_a_log_is_followed(self) -> None:
        self.write("train.py", TALKING.replace("GO", str(self.dir / "go")))
        study = self.submit(matrix={"ranks": [1]}, repeats=1)
        self.log_in()
        run = self.service.json("run", "list", study)["runs"][0]["name"].rsplit("/", 1)[1]
        self.go(f"#/runs/{run}", "first line")
        self.write("go", "")
        self.browser.wait_text("second line")
        self.browser.wait_text("succeeded")

    def test_a_log_that_the_worker_cuts_is_followed(self) -> None:
        self.write("train.py", TALKING.replace("GO", str(self.dir / "go")).replace('"first line"', '"first line " * 100'))
        study = self.submit(matrix={"ranks": [1]}, repeats=1)
        self.log_in()
        run = self.service.json("run", "list", study)["runs"][0]["name"].rsplit("/", 1)[1]
        self.go(f"#/runs/{run}", "first line")
        directory = self.service.json("run", "show", run)["run"]["attempts"][0]["directory"]
        # What the worker does with a file that is too long, without a state in between that has no mark.
        mark = b"\n[scalelab-worker cut this file here, as it had more than 64 MiB]\n"
        with open(f"{directory}/rank-0.out", "r+b", buffering=0) as file:
            file.seek(4)
            file.write(mark + b"after the cut\n")
            file.truncate()
        self.browser.wait_text("after the cut")
        self.write("go", "")
        self.browser.wait_text("second line")
        log = self.browser.run("return document.querySelector('.log').textContent")
        self.assertEqual(log, "first line " * 100 + "\n\n" + mark.decode().strip() + "\nafter the cut\nsecond line\n")

    def test_the_log_of_the_next_attempt_follows(self) -> None:
        self.write("train.py", FAILING.replace("GO", str(self.dir / "go")))
        study = self.submit(matrix={"ranks": [2]}, repeats=1, retry={"max": 1, "on": ["trainer_error"]})
        self.log_in()
        run = self.service.json("run", "list", study)["runs"][0]["name"].rsplit("/", 1)[1]
        self.go(f"#/runs/{run}", "output of attempt 1")
        self.assertEqual(self.browser.run("return document.getElementById('log-rank').max"), "1")
        self.check_page("live-run")
        self.write("go", "")
        self.browser.wait_text("output of attempt 2")
        self.assertNotIn("output of attempt 1", self.browser.text())

    def test_a_metric_that_appears_later_can_be_chosen(self) -> None:
        self.write("train.py", EVALUATING.replace("GO", str(self.dir / "go")))
        study = self.submit(matrix={"ranks": [1]}, repeats=1)
        self.log_in()
        run = self.service.json("run", "list", study)["runs"][0]["name"].rsplit("/", 1)[1]
        self.go(f"#/runs/{run}", "Metric")
        offered = "return [...document.querySelectorAll('#metric option')].some((e) => e.value === arguments[0])"
        self.browser.wait_for(offered, "train/loss")
        self.write("go", "")
        self.browser.wait_for(offered, "eval/accuracy")
        self.assertEqual(self.browser.run("return document.getElementById('metric').value"), "train/loss")

    def hold_back(self) -> pathlib.Path:
        """Restarts the service, whose programs then wait until the returned file is deleted."""
        hold = pathlib.Path(self.write("hold", ""))
        os.environ["HOLD_BACK"] = str(hold)
        self.service.stop()
        self.service.start()
        return hold

    def test_a_focused_link_does_not_stop_the_page(self) -> None:
        hold = self.hold_back()
        study = self.submit(matrix={"ranks": [1]}, repeats=1)
        waiting = self.submit(study="waiting", matrix={"ranks": [2]}, repeats=1)  # its job needs both slots
        self.log_in()
        # A table without rows has no caption.
        worker = "return [...document.querySelectorAll('main caption')].some((e) => e.textContent === 'Workers')"
        self.go(f"#/studies/{study.split('/')[1]}/allocations", "Allocations")
        self.browser.wait_for(worker)
        self.check_page("live-allocations")
        self.go(f"#/studies/{waiting.split('/')[1]}/explain", "Why the rest")
        self.browser.wait_for("return document.querySelector('#panel ol')?.textContent.includes('waits for 2 slots of this machine')")
        self.check_page("waiting-explain")
        self.go("#/cluster", "Queued runs")
        self.browser.wait_for(worker)
        self.check_page("live-cluster")
        self.browser.focus("main td a")
        hold.unlink()
        self.browser.wait_text("Allocations: none now")
        self.assertEqual(self.browser.run_async(RENEW), ["1 step 22 step 2", "#/runs/2"])

    def test_the_list_shows_the_throughput_of_a_run_that_has_ended_meanwhile(self) -> None:
        hold = self.hold_back()
        study = self.submit(matrix={"ranks": [1]}, repeats=1)
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}", "Runs 1 to 1 of 1")
        cell = "document.querySelector('#panel section td:nth-child(5)').textContent"
        self.assertEqual(self.browser.run(f"return {cell}"), "–")
        hold.unlink()
        self.browser.wait_for(f"return /^[0-9]/.test({cell})")

    def test_the_last_curve_is_from_after_the_end_of_the_study(self) -> None:
        self.log_in()
        self.assertEqual(self.browser.run_async(ENDING), 2)

    def test_a_learning_curve_that_cannot_be_read_is_reported_and_read_again(self) -> None:
        self.log_in()
        self.assertEqual(self.browser.run_async(INTERRUPTED), [True, "run 1: 1; run 2: 1", ["", "8 4"]])

    def test_a_run_whose_points_cannot_be_read_is_named_beside_the_curves_of_the_others(self) -> None:
        self.log_in()
        self.assertEqual(self.browser.run_async(UNREADABLE), [
            ["eval/accuracy", "train/loss"], "runs/3: 1", ["The points of runs/1 cannot be read: the points are damaged"],
            "runs/1: 1; runs/3: 1", []])

    def test_a_server_that_accepts_requests_and_never_answers_is_reported(self) -> None:
        self.log_in()
        self.go("#/submit", "Submit a study")  # a page that makes no calls by itself
        silent = ["UNAVAILABLE: the server has not answered for 3 minutes; a change that you requested may have been made", True,
                  "UNAVAILABLE: the connection to the server was lost"]
        self.assertEqual(self.browser.run_async(SILENT), [*silent, *silent, "RUNNING"])

    def test_a_stream_that_ends_after_each_message_is_opened_again_ever_more_rarely(self) -> None:
        self.log_in()
        self.go("#/submit", "Submit a study")  # a page that makes no calls by itself
        self.assertEqual(self.browser.run_async(ENDED), [500, 1000, 2000, 4000, 8000, 10000, 10000])

    def test_the_keyboard_zooms_a_learning_curve(self) -> None:
        study = self.submit(matrix={"ranks": [1]}, repeats=1)
        self.service.run("study", "wait", study)
        self.log_in()
        run = self.service.json("run", "list", study)["runs"][0]["name"].rsplit("/", 1)[1]
        self.go(f"#/runs/{run}", "Metric")
        self.browser.wait_for("return document.querySelectorAll('.chart canvas').length > 0")
        shown = "return /shown: step .* to /.test(document.querySelector('.chart-values').textContent) === arguments[0]"
        self.browser.focus(".chart")
        self.browser.press("+", "Right")
        self.browser.wait_for(shown, True)
        self.assertEqual(self.browser.violations(), [])
        self.browser.press("0")
        self.browser.wait_for(shown, False)

    def test_a_study_is_submitted_and_cancelled(self) -> None:
        self.service.run("admin", "drain")
        self.log_in()
        self.go("#/submit", "Submit a study")
        self.browser.click("button", "Check")
        self.browser.wait_text("Jobs")
        self.assertEqual(self.browser.violations(), [])
        self.browser.click("button", "Submit")
        self.browser.wait_text("6 queued")
        # A click that begins before a change of the study and ends after it has an effect, because the page keeps the
        # same button elements.
        self.browser.run("window.cancel = [...document.querySelectorAll('button')].find((e) => e.textContent === 'Cancel study')")
        self.browser.click("button", "Hold")
        self.browser.wait_text("held")
        self.browser.wait_text("Release")
        self.assertTrue(self.browser.run("return window.cancel.isConnected"))
        self.browser.click("button", "Cancel study")
        self.browser.wait_text("Cancel studies/1?")
        self.assertEqual(self.browser.violations(), [])
        self.browser.click("dialog button", "Cancel study")
        self.browser.wait_text("6 cancelled")
        self.assertEqual(self.service.json("study", "show", "1")["study"]["state"], "CANCELLED")
        self.go("#/submit", "Submit a study")
        self.expected = ("api/ParseStudy",)  # Chromium reports a response with an error
        self.browser.run("const text = document.getElementById('study'); text.value = arguments[0]; text.dispatchEvent(new Event('input'))",
                         "study: x\nmatix: 1\n")
        self.browser.click("button", "Check")
        self.browser.wait_text("study:2:1")

    def test_a_study_is_submitted_on_a_page_without_encryption(self) -> None:
        self.service.run("admin", "drain")
        self.log_in()
        self.go("#/submit", "Submit a study")
        self.browser.run("delete Crypto.prototype.randomUUID")  # as on a page of http:// from another machine
        self.browser.click("main button", "Submit")
        self.browser.wait_text("6 queued")

    def test_a_text_that_changes_while_the_server_reads_it_is_not_submitted_in_its_old_form(self) -> None:
        self.service.run("admin", "drain")
        self.log_in()
        self.go("#/submit", "Submit a study")
        self.browser.run(CHANGED_MEANWHILE)
        self.browser.click("button", "Submit")
        self.browser.wait_text("The text has changed in the meantime.")
        self.assertEqual(self.service.json("study", "list").get("studies", []), [])
        self.browser.click("main button", "Submit")
        self.browser.wait_text("6 queued")
        self.assertEqual([study["display_name"] for study in self.service.json("study", "list")["studies"]], ["changed-study"])

    def test_the_keyboard_reaches_every_run(self) -> None:
        study = self.submit()
        self.service.run("study", "wait", study)
        self.log_in()
        self.go(f"#/studies/{study.split('/')[1]}", "Runs 1 to 4 of 4")
        self.browser.focus(".heat")
        self.browser.press("Down", "Right")
        self.browser.wait_text("repeat 1")
        self.browser.press("Enter")
        self.browser.wait_text("Attempts")
        self.browser.focus(".skip")
        self.browser.press("Enter")
        self.browser.wait_for("return document.activeElement.id === 'main'")

    def test_a_login_for_reading_has_no_buttons(self) -> None:
        self.service.run("admin", "drain")
        study = self.submit()
        self.log_in("--scope", "read")
        self.go(f"#/studies/{study.split('/')[1]}", "List of runs")
        self.assertNotIn("Cancel study", self.browser.text())
        self.assertNotIn("Submit", self.browser.text())

    def test_a_link_works_once(self) -> None:
        link = self.link()
        self.browser.open(link)
        self.browser.wait_text("no studies yet")
        self.assertNotIn("login", self.browser.run("return location.href"))
        self.browser.click("button", "Log out")
        self.browser.wait_text("You are logged out")
        self.check_page("login")
        self.expected = ("401 (Unauthorized)",)  # Chromium reports a response with an error
        self.browser.open(link)
        self.browser.run("location.reload()")
        self.browser.open(link.replace("/#", "/?#"))
        self.browser.wait_text("was used before")

    def test_ten_thousand_runs(self) -> None:
        self.service.run("admin", "drain")
        study = self.submit(repeats=100, matrix={"ranks": [1, 2], "momentum": [0.1, 0.2, 0.3, 0.4, 0.5],
                                                 "learning_rate": [i / 1000 for i in range(1, 11)]})
        self.log_in()
        self.browser.on_new_page(PAINTED)
        self.browser.open(f"{self.base}?#/studies/{study.split('/')[1]}")  # with another query, so that the page is loaded
        heat_map = self.browser.wait_for("return window.painted")
        first = self.browser.wait_for("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        self.browser.wait_text("of 10,000")
        whole = self.browser.run("return performance.now()")
        frames = self.browser.run_async(SCROLL)
        median = frames[len(frames) // 2]
        slow = sum(frame > 50 for frame in frames)
        print(f"10,000 runs, after the begin of a page load: first contentful paint {first:.0f} ms, heat map {heat_map:.0f} ms (goal: "
              f"< 1000 ms), list {whole:.0f} ms\n10,000 runs, {len(frames)} frames while the heat map scrolls: median {median:.1f} ms, "
              f"slowest {frames[-1]:.1f} ms (goal: 60 frames a second, that is 16.7 ms), {slow} over 50 ms (goal: none)", file=sys.stderr)
        # Far above the goals, for busy machines: these limits find a page that hangs.
        self.assertLess(first, 3000)
        self.assertLess(heat_map, 10_000)
        self.assertLess(median, 100)
        self.check_page("ten-thousand")


if __name__ == "__main__":
    unittest.main()

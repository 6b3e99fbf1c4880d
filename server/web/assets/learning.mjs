// Learning curves: metrics of runs over steps or time, renewed while the runs train.
import {ApiError, collect, persist, repeat} from './api.mjs';
import {chooser} from './chooser.mjs';
import {errorText, h, keyText, lastPart, number, renew} from './dom.mjs';
import {legendOf} from './plot.mjs';
import {readRuns, readStates, stateAt} from './runs.mjs';
import {isFinal} from './states.mjs';

const MOST_RUNS = 8;
const POINTS = 400;
const STARTED = ['RUNNING', 'SUCCEEDED', 'FAILED'];
// Lengths of the dashes and gaps of each line, so that colour is not needed to tell lines apart.
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [16, 6], [16, 3, 2, 3, 2, 3], [4, 8], [12, 3, 4, 3]];
// Errors of the server or the connection; other errors concern one run.
const OF_SERVER = ['UNAVAILABLE', 'CANCELLED', 'RESOURCE_EXHAUSTED', 'ABORTED', 'UNAUTHENTICATED'];
// Keys of the chart: the factor of the width of its window, and how far the window moves, as a share of its width.
const KEYS = {'+': [0.5, 0], '=': [0.5, 0], '-': [2, 0], ArrowLeft: [1, -0.25], ArrowRight: [1, 0.25], '0': [Infinity, 0]};

let library = null;
/** Loads dygraphs when the first chart needs it. */
function dygraphs() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(h('script', {src: 'assets/dygraph.min.js', on: {load: () => resolve(withoutLegend(window.Dygraph)), error: () => reject(new Error('the chart library cannot be loaded'))}}));
  });
  return library;
}

// The legend of the library sets style attributes, which the policy of the page forbids.
function withoutLegend(library) {
  library.PLUGINS = library.PLUGINS.filter((plugin) => plugin !== library.Plugins.Legend);
  return library;
}

const concernsRun = (error) => error instanceof ApiError && !OF_SERVER.includes(error.code);

/** The metrics that rank 0 of a run has reported with more than one point. */
async function metricsOf(run, signal) {
  const series = await collect('ReadPoints', {run, rank: 0, max_points: 2}, signal);
  return [...new Set(series.filter(({step}) => step?.length > 1).map(({key}) => key))].sort();
}

export async function learningTab(panel, view) {
  const {name, signal} = view;
  let counts = JSON.stringify(view.study.counts);  // older than the runs that are read next, so a change in between is noticed
  const runs = await readRuns(name, signal);
  for (const run of runs) run.started = Boolean(run.start_time);
  const started = () => runs.filter((run) => run.started);
  if (started().length === 0) {
    panel.replaceChildren(h('p', {class: 'soft'}, 'No run has started yet.'));
    await repeat(2000, async () => await update() && started().length === 0, signal);
    if (started().length === 0 || signal.aborted) return;
  }

  // One run of each cell, at first those that have not failed: a failed run may have no points.
  const candidates = started();
  const ofCells = candidates.filter((run) => !run.repeat);
  const firsts = ofCells.length ? ofCells : candidates;
  const failed = (run) => run.state === 'FAILED';
  const chosen = new Set([...firsts.filter((run) => !failed(run)), ...firsts.filter(failed)].slice(0, MOST_RUNS).map((run) => run.name));
  const labelled = (run) => ({name: run.name, label: `${lastPart(run.name)}: ${keyText(run.key)} repeat ${run.repeat ?? 0}`});
  const shown = () => runs.filter((run) => chosen.has(run.name)).map(labelled);
  const chart = await learningChart(() => !isFinal(view.study), signal);
  const list = chooser('Runs', MOST_RUNS, chosen, () => chart.show(shown()));
  list.show(candidates.map(labelled));
  panel.replaceChildren(chart.element, h('details', {class: 'panel'}, h('summary', null, 'Choose runs'), list.element));
  chart.show(shown());

  let listed = candidates.length;
  await repeat(2000, async () => {
    const more = await update();
    const now = started();
    if (now.length > listed) list.show(now.map(labelled));
    listed = now.length;
    return more;
  }, signal);

  // Reads which runs have started meanwhile. Returns whether others may start.
  async function update() {
    const final = isFinal(view.study);
    const now = JSON.stringify(view.study.counts);
    if (now === counts) return !final;
    const states = await readStates(name, signal);
    // The state of a cancelled run does not show whether it had started.
    const last = final ? await readRuns(name, signal) : [];
    runs.forEach((run, i) => { run.started ||= STARTED.includes(stateAt(states, i)) || Boolean(last[i]?.start_time); });
    counts = now;
    return !final;
  }
}

/** A chart of runs: {element, show(runs)} with runs [{name, label}]. `live()`: whether points may still come. */
export async function learningChart(live, signal) {
  const Dygraph = await dygraphs();
  const metric = h('select', {id: 'metric', on: {change: again}});
  const axis = h('select', {id: 'axis', on: {change: again}}, h('option', {value: 'step'}, 'step'), h('option', {value: 'time'}, 'seconds'));
  const target = h('div', {class: 'chart', tabindex: '0', role: 'application', 'aria-describedby': 'chart-values', on: {keydown: zoom},
    'aria-label': 'Learning curves: plus and minus zoom in and out, arrow keys move, 0 shows all; the line below has the last values'});
  const legend = h('div');
  const values = h('p', {class: 'chart-values soft', id: 'chart-values', role: 'status'});
  const none = h('p', {class: 'soft', hidden: true});
  const problems = h('div', {role: 'status'});
  const element = h('div', {class: 'panel'}, h('p', {class: 'bar-of'}, h('label', {for: 'metric'}, 'Metric ', metric), h('label', {for: 'axis'}, 'over ', axis)), none, target, values, legend, problems);
  let graph = null;
  let runs = [];
  let latest = 0;
  let renewing = false;  // whether the next drawing begins without the zoom of the one before
  let last = '';
  let keys = [];  // the metrics of the shown runs
  const metrics = new Map();  // by name of the run: {keys, complete}; complete: whether no further metric can appear
  target.hidden = true;
  signal.addEventListener('abort', () => graph?.destroy());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again, {signal});

  // Offers the metrics that at least one of the shown runs has.
  function fillKeys() {
    const found = [...new Set(runs.flatMap(({name}) => metrics.get(name)?.keys ?? []))].sort();
    if (found.join() === keys.join()) return;
    keys = found;
    const before = metric.value;
    const selected = [before, 'train/loss'].find((key) => keys.includes(key)) ?? keys[0];
    metric.replaceChildren(...keys.map((key) => h('option', {value: key, selected: key === selected}, key)));
    renewing ||= selected !== before;
    target.hidden = keys.length === 0;
  }

  function again() {
    return persist(() => refresh(true), signal).catch(report);
  }
  function report(error) {
    if (!signal.aborted) values.textContent = errorText(error);
  }

  async function refresh(anew = false) {
    renewing ||= anew;
    const mine = ++latest;
    if (runs.length === 0) return;
    const errors = new Map();  // by name of the run
    // Returns the result for a run, or undefined after an error that concerns only this run.
    const attempt = (name, promise) => promise.catch((error) => {
      if (!concernsRun(error)) throw error;  // the chart keeps the last state
      errors.set(name, error);
    });
    await Promise.all(runs.filter(({name}) => !metrics.get(name)?.complete).map(async ({name}) => {
      const ended = !live();
      const found = await attempt(name, metricsOf(name, signal));
      if (found) metrics.set(name, {keys: found, complete: ended});
    }));
    if (mine !== latest || signal.aborted) return;
    fillKeys();
    none.textContent = runs.length === 1 ? 'The run has not reported a metric yet.' : 'None of the shown runs has reported a metric yet.';
    none.hidden = keys.length > 0 || errors.size === runs.length;
    if (keys.length > 0) {
      const series = await Promise.all(runs.map(({name}) =>
        attempt(name, collect('ReadPoints', {run: name, key: metric.value, rank: 0, max_points: POINTS}, signal))));
      if (mine !== latest || signal.aborted) return;
      draw(series.map((messages) => join(messages ?? [])));
      tell();
    } else {
      legend.replaceChildren();
      values.textContent = '';
    }
    renew(problems, runs.filter(({name}) => errors.has(name)).map(({name, label}) =>
      h('p', {class: 'error'}, `The points of ${label} cannot be read: ${errorText(errors.get(name))}`)));
  }

  function join(messages) {
    const points = [];
    const first = messages[0]?.time?.[0] ?? 0;
    for (const {step = [], time = [], value = []} of messages)
      value.forEach((v, i) => points.push([axis.value === 'step' ? Number(step[i]) : time[i] - first, Number(v)]));
    return points;
  }

  function draw(series) {
    const rows = new Map();
    series.forEach((points, i) => points.forEach(([x, y]) => {
      if (!rows.has(x)) rows.set(x, [x, ...series.map(() => null)]);
      rows.get(x)[i + 1] = y;
    }));
    const data = [...rows.values()].sort((a, b) => a[0] - b[0]);
    last = series.map((points, i) => points.length ? `${runs[i].label}: ${number(points[points.length - 1][1], 5)}` : '').filter(Boolean).join('; ');
    legend.replaceChildren(legendOf(runs.map(({label}) => label), DASHES));
    if (data.length === 0) return;
    const style = getComputedStyle(document.documentElement);
    const options = {
      file: data, labels: [axis.value, ...runs.map(({label}) => label)], connectSeparatedPoints: true, xlabel: axis.value === 'step' ? 'step' : 'seconds since the first point',
      colors: runs.map((_, i) => style.getPropertyValue(`--series-${i % 8}`).trim()), strokeWidth: 1.8, axisLineColor: style.getPropertyValue('--soft').trim(),
      gridLineColor: style.getPropertyValue('--line').trim(), digitsAfterDecimal: 4, highlightCircleSize: 4,
      series: Object.fromEntries(runs.map(({label}, i) => [label, {strokePattern: DASHES[i % DASHES.length].length ? DASHES[i % DASHES.length] : null}])),
      drawPoints: data.length < 40, pointSize: 3, xRangePad: 6,
      highlightCallback: (event, x, points) => { values.textContent = `${axis.value} ${number(x)}: ${points.map((point) => `${point.name}: ${number(point.yval, 5)}`).join('; ')}`; },
      unhighlightCallback: tell, zoomCallback: tell,
    };
    if (graph && !renewing) return graph.updateOptions(options);
    renewing = false;
    graph?.destroy();
    graph = new Dygraph(target, data, options);
  }

  // Shows the last values, and the part of the axis that is visible.
  function tell() {
    const [from, to] = graph?.isZoomed('x') ? graph.xAxisRange() : [];
    values.textContent = from === undefined ? last : `${last} (shown: ${axis.value} ${number(from)} to ${number(to)})`;
  }

  function zoom(event) {
    if (!graph || !KEYS[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [factor, move] = KEYS[event.key];
    const [first, end] = graph.xAxisExtremes();
    const [low, high] = graph.xAxisRange();
    if (!(end > first)) return;  // one point
    const width = Math.max((high - low) * factor, (end - first) / 1000);
    if (width >= end - first) {
      graph.resetZoom();
    } else {
      const from = Math.min(Math.max((low + high - width) / 2 + move * width, first), end - width);
      graph.updateOptions({dateWindow: [from, from + width]});
    }
    tell();
  }

  repeat(4000, async () => {
    await refresh();
    return live();
  }, signal).then(() => signal.aborted || persist(() => refresh(), signal)).catch(report);
  return {
    element,
    async show(list) {
      runs = list;
      await again();
    },
  };
}

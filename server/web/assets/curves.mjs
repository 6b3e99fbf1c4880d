// The scaling curves of a study, renewed while it runs.
import {call, repeat, sleep} from './api.mjs';
import {h, keyText, number, renew, stateOf, table} from './dom.mjs';
import {linePlot} from './plot.mjs';
import {isFinal} from './states.mjs';

const MEASURES = [
  ['throughput', 'Throughput', 'samples/s'], ['speedup', 'Speedup', 'speedup'], ['efficiency', 'Efficiency', 'efficiency'],
  ['epoch_seconds', 'Time of an epoch', 's'], ['comm_share', 'Share of communication', 'share of a step'],
  ['peak_memory', 'Peak memory of a rank', 'MiB'], ['accuracy', 'Accuracy', 'accuracy'], ['train_loss', 'Training loss', 'loss'],
];
const MOST_SERIES = 12;
const unit = (measure) => measure === 'peak_memory' ? 2 ** 20 : 1;
const has = (series, measure) => series.some(({points}) => (points ?? []).some((point) => point[measure]));
/** The mean of an estimate: JSON leaves out a mean of 0. */
export const meanOf = (estimate) => estimate.mean ?? 0;

export async function curvesTab(panel, view) {
  let [measure, answer] = ['', null];
  let shown = '';
  // These elements stay, so that the focus and an open list of measures remain.
  const select = h('select', {id: 'measure', on: {change: () => { measure = select.value; show(); }}});
  const choice = h('p', null, h('label', {for: 'measure'}, 'Show ', select));
  const content = h('div', {class: 'columns'});
  await repeat(1000, async () => {
    const final = isFinal(view.study);  // an answer that was requested before the end lacks the last runs
    const begin = performance.now();
    answer = await call('GetCurve', {study: view.name}, view.signal);
    // A large curve takes long to compute, and many people may look at it.
    const wait = Math.max(5000, 20 * (performance.now() - begin));
    const text = JSON.stringify(answer);
    if (text !== shown) show();
    shown = text;
    if (!isFinal(view.study)) await sleep(wait, view.signal);
    return !final;
  }, view.signal);

  function show() {
    const series = answer.series ?? [];
    const known = MEASURES.filter(([id]) => has(series, id));
    if (!known.some(([id]) => id === measure)) measure = known[0]?.[0] ?? '';
    if (known.length === 0) return panel.replaceChildren(h('p', {class: 'soft'}, 'No run has results yet.'));
    const offered = [...select.options].map(({value}) => value);
    if (offered.join() !== known.map(([id]) => id).join()) select.replaceChildren(...known.map(([id, title]) => h('option', {value: id}, title)));
    if (select.value !== measure) select.value = measure;
    renew(content, h('div', {class: 'panel'}, curvePicture(series, measure, answer.scaling)),
      h('div', null, ...series.map((one) => seriesTable(one, measure))));
    if (choice.parentNode !== panel) panel.replaceChildren(choice, content);
  }
}

/** The picture of a measure of these series; `nameOf` names a series. */
export function curvePicture(series, measure, scaling = '', nameOf = ({key}) => keyText(key) || 'all runs') {
  const [, title, unitText] = MEASURES.find(([id]) => id === measure);
  const drawn = series.slice(0, MOST_SERIES).map((one) => ({name: nameOf(one), points: (one.points ?? []).filter((point) => point[measure]).map((point) => ({
    x: point.ranks, y: meanOf(point[measure]) / unit(measure), open: point.state === 'PARTIAL', note: `n=${repeatsOf(point)}`,
    low: point[measure].low === undefined ? undefined : point[measure].low / unit(measure), high: point[measure].high === undefined ? undefined : point[measure].high / unit(measure)}))}));
  return h('div', null, h('h2', null, title + (scaling ? ` (${scaling} scaling)` : '')),
    linePlot({title, xTitle: 'ranks', yTitle: unitText, series: drawn, ideals: idealsOf(series.slice(0, MOST_SERIES), measure)}),
    h('p', {class: 'soft'}, 'Bars are 95% intervals; an open mark has repeats that did not succeed.'),
    series.length > MOST_SERIES ? h('p', {class: 'soft'}, `The picture shows the first ${MOST_SERIES} of ${series.length} series; the tables have all.`) : '');
}

/** The ideal lines of a measure of these series: one for each baseline. */
function idealsOf(series, measure) {
  if (measure === 'efficiency') return [{name: 'ideal', at: () => 1}];
  if (measure !== 'speedup') return [];
  const baselines = [...new Set(series.map(({baseline_ranks: ranks}) => ranks).filter((ranks) => ranks > 0))].sort((a, b) => a - b);
  return baselines.map((ranks) => ({name: baselines.length === 1 ? 'ideal' : `ideal, baseline ranks ${ranks}`, at: (x) => x / ranks}));
}

function seriesTable(one, measure) {
  return h('section', {class: 'panel'}, table(keyText(one.key) || 'All runs', [['Ranks', 'number'], ['State'], ['n', 'number'], ['Mean', 'number'], ['95% interval']],
    (one.points ?? []).map((point) => [point.ranks, pointState(point), repeatsOf(point), point[measure] ? number(meanOf(point[measure]) / unit(measure)) : '–',
      point[measure]?.low === undefined ? '–' : `${number(point[measure].low / unit(measure))} to ${number(point[measure].high / unit(measure))}`])),
    notesOf(one).map((note) => h('p', {class: 'soft'}, note)));
}

/** How many values a point has, and of how many repeats if some are missing: "5" or "3/5". */
function repeatsOf({n = 0, asked = 0}) { return n === asked ? n : `${n}/${asked}`; }

/** The notes on a series and its points, each once, with the ranks of its points. */
function notesOf(one) {
  const ranks = new Map();  // by note
  for (const point of one.points ?? []) {
    for (const note of point.notes ?? []) ranks.set(note, [...ranks.get(note) ?? [], point.ranks]);
  }
  const ofPoints = [...ranks].map(([note, at]) => `${at.join(', ')} ${at.length === 1 && at[0] === 1 ? 'rank' : 'ranks'}: ${note}`);
  const floor = one.noise_floor > 0 ? [`Differences below ${number(100 * one.noise_floor)}% could not be seen with these repeats.`] : [];
  return [...one.notes ?? [], ...ofPoints, ...floor];
}

const STATES = {OK: 'SUCCEEDED', PARTIAL: 'RUNNING', FAILED: 'FAILED', OUT_OF_MEMORY: 'FAILED', PENDING: 'QUEUED', MISSING: 'CANCELLED', EXCLUDED: 'SKIPPED'};
function pointState({state = 'PENDING'}) {
  const element = stateOf(STATES[state]);
  element.lastChild.textContent = state.toLowerCase().replaceAll('_', ' ');
  return element;
}
export {MEASURES, has as hasMeasure};

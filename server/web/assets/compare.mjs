// Compares the values of an axis of a study, or several studies.
import {call, pages, persist} from './api.mjs';
import {chooser} from './chooser.mjs';
import {curvePicture, hasMeasure, meanOf, MEASURES} from './curves.mjs';
import {errorText, h, keyText, lastPart, number, table} from './dom.mjs';
import {forestPlot} from './plot.mjs';

const MOST_STUDIES = 6;
const MOST_DIFFERENCES = 30;  // in the picture
const PER_CALL = 1000;
const VERDICTS = {FASTER: 'faster', SLOWER: 'slower', EQUIVALENT: 'equivalent', UNDECIDED: 'undecided'};

export async function comparePage(main, {query, signal}) {
  document.title = 'Compare – scalelab';
  const chosen = new Set((query.get('studies') ?? '').split(',').filter(Boolean));
  const axis = h('input', {id: 'axis', value: query.get('axis') ?? '', placeholder: 'engine', size: '16'});
  const list = chooser('Studies', MOST_STUDIES, chosen);
  const result = h('div');
  const choose = (event) => {
    event.preventDefault();
    location.hash = `#/compare?studies=${[...chosen].join(',')}&axis=${encodeURIComponent(axis.value)}`;
  };
  main.replaceChildren(h('h1', null, 'Compare'),
    h('form', {class: 'panel', on: {submit: choose}},
      h('p', {class: 'soft'}, `Choose one study to compare the values of an axis, or up to ${MOST_STUDIES} studies to compare them with each other; with an axis, each study is a repetition.`),
      list.element,
      h('p', {class: 'bar-of'}, h('label', {for: 'axis'}, 'Axis ', axis), h('button', {class: 'main'}, 'Compare'))),
    result);
  await Promise.all([persist(readStudies, signal),
    chosen.size ? compare([...chosen].map((number) => `studies/${number}`), axis.value, result, signal) : null]);

  async function readStudies() {
    const known = [];
    for await (const {studies = []} of pages('ListStudies', {page_size: PER_CALL}, signal)) {
      known.push(...studies.map(({name, display_name: title}) => ({name: lastPart(name), label: `${lastPart(name)} ${title ?? ''}`})));
      list.show(known);
    }
  }
}

async function compare(studies, axis, result, signal) {
  result.replaceChildren(h('p', {class: 'soft'}, 'Comparing …'));
  try {
    const request = {studies, axis: axis || (studies.length > 1 ? 'study' : '')};
    const [comparison, ...curves] = await Promise.all([call('CompareCells', request, signal), ...studies.map((study) => call('GetCurve', {study}, signal))]);
    const series = curves.flatMap((curve) => (curve.series ?? []).map((one) => ({...one, name: `${lastPart(curve.study)} ${curve.display_name} ${keyText(one.key)}`})));
    // The pair is in the table, and only names the lines of the picture where there are several.
    const several = new Set((comparison.groups ?? []).flatMap(({pairs = []}) => pairs.map(({first, second}) => `${first} / ${second}`))).size > 1;
    const rows = (comparison.groups ?? []).flatMap((group) => (group.pairs ?? []).map((pair) => ({group, pair,
      name: [several ? `${pair.first} / ${pair.second}` : '', keyText(group.key), `${group.ranks} rank${group.ranks === 1 ? '' : 's'}`].filter(Boolean).join(', '), effect: pair.effect && meanOf(pair.effect), low: pair.effect?.low, high: pair.effect?.high})));
    const percent = (value) => value === undefined ? '–' : Math.abs(value) < 5e-5 ? '0%' : `${value > 0 ? '+' : ''}${number(100 * value, 3)}%`;
    const drawn = rows.filter(({effect}) => effect !== undefined);
    const notes = new Set([...comparison.notes ?? [], ...(comparison.groups ?? []).flatMap(({notes}) => notes ?? [])]);
    const cells = rows.some(({group}) => keyText(group.key));
    result.replaceChildren(h('section', {class: 'columns'},
      h('div', {class: 'panel whole'}, h('h2', null, `Differences in throughput (${comparison.axis})`), forestPlot('Differences in throughput', drawn.slice(0, MOST_DIFFERENCES)),
        drawn.length > MOST_DIFFERENCES ? h('p', {class: 'soft'}, `The picture shows the first ${MOST_DIFFERENCES} of ${drawn.length} differences; the table has all.`) : '',
        table('First relative to second', [['Pair', 'key'], ['Cell', cells ? 'key' : 'hide-narrow'], ['Ranks', 'number'], ['Difference', 'number'], ['95% interval'], ['Verdict']],
          rows.map(({group, pair, effect, low, high}) => [`${pair.first} / ${pair.second}`, keyText(group.key), group.ranks, percent(effect), low === undefined ? '–' : `${percent(low)} to ${percent(high)}`, VERDICTS[pair.verdict] ?? '–']),
          'no two values have results at equal cells'),
        [...notes].map((note) => h('p', {class: 'soft'}, note))),
      ...MEASURES.slice(0, 3).filter(([id]) => hasMeasure(series, id)).map(([id]) => h('div', {class: 'panel'}, curvePicture(series, id, '', ({name}) => name)))));
  } catch (error) {
    if (!signal.aborted) result.replaceChildren(h('p', {class: 'error', role: 'alert'}, errorText(error)));
  }
}

// One run: its attempts, results, learning curves and logs.
import {actionBar} from './actions.mjs';
import {call, repeat} from './api.mjs';
import {duration, errorText, facts, h, keyText, lastPart, number, secondsBetween, stateOf, table, time} from './dom.mjs';
import {learningChart} from './learning.mjs';
import {logView} from './logs.mjs';
import {isFinal} from './states.mjs';
import {reasonList} from './study.mjs';

const ACTIONS = [
  {title: 'Cancel run', method: 'CancelRun', offered: (run) => !isFinal(run), kind: 'danger', question: ({name}) => `Cancel run ${lastPart(name)}?`},
  {title: 'Retry run', method: 'RetryRun', offered: ({state}) => ['FAILED', 'CANCELLED'].includes(state)},
];

/** The kinds of nodes of an attempt: the names of the nodes, and the facts that they have in common. */
function nodeKinds(attempt) {
  const kinds = new Map();
  (attempt?.node_infos ?? []).forEach((node, i) => {
    const software = Object.entries(node.software ?? {}).sort().map(([name, version]) => `${name} ${version}`).join(', ');
    const memory = node.memory_bytes ? `${(node.memory_bytes / 2 ** 30).toFixed(1)} GiB` : '';
    const kind = [['CPU', node.cpu_model], ['Cores', node.cpus], ['Memory', memory], ['GPUs', (node.gpus ?? []).join(', ')], ['System', node.os], ['Software', software]];
    const text = JSON.stringify(kind);
    if (!kinds.has(text)) kinds.set(text, [[], kind]);
    kinds.get(text)[0].push(attempt.nodes?.[i] ?? `node ${i + 1}`);
  });
  return [...kinds.values()];
}

/** The facts about the code of a user's program. */
function codeFacts(code) {
  const changes = code.git_dirty === undefined ? 'unknown' : code.git_dirty ? 'yes' : 'none';
  return [...(code.files ?? []).map((file) => ['File', `${file.path}, SHA-256 ${file.sha256}`]),
    ...(code.git_root ? [['Git repository', code.git_root], ['Commit', code.git_commit || 'none'],
      ['Changes since then', code.diff_sha256 ? `${changes}, SHA-256 ${code.diff_sha256}, in ${code.diff_path}` : changes]] : [])];
}

export async function runPage(main, {parts: [id], identity, signal}) {
  let {run} = await call('GetRun', {name: `runs/${id}`}, signal);
  const parent = run.name.split('/runs/')[0];
  const {study} = await call('GetStudy', {name: parent}, signal);
  document.title = `Run ${id} – scalelab`;
  const head = h('div');
  const buttons = actionBar(ACTIONS, (answer) => {
    if (signal.aborted) return;
    // A final run is not asked for any more; the page begins anew.
    if (isFinal(run)) return dispatchEvent(new HashChangeEvent('hashchange'));
    ({run} = answer);
    show();
  });
  const results = h('section', {class: 'panel'});
  const specification = h('details', {class: 'panel'}, h('summary', null, `Specification: ${Object.keys(run.spec ?? {}).length} parameters`),
    facts(Object.entries(run.spec ?? {}).map(([key, value]) => [key, typeof value === 'object' ? JSON.stringify(value) : String(value)])));
  const nodes = h('details', {class: 'panel'});
  const code = h('details', {class: 'panel'});
  const attempts = h('section');
  const why = h('div');
  const charts = h('section', null, h('h2', null, 'Learning curve'), h('p', {class: 'soft'}, 'Loading …'));
  const logs = h('section');
  main.replaceChildren(head, identity.mayControl(study) ? buttons.element : '', h('div', {class: 'columns'}, results, specification), attempts, nodes, code, why, charts, logs);
  show();

  let logsShown = false;
  let chartShown = false;
  await repeat(2000, async () => {
    const before = JSON.stringify(run);
    ({run} = await call('GetRun', {name: run.name}, signal));
    if (JSON.stringify(run) !== before) show();
    showRest();
    if (run.state === 'QUEUED') why.replaceChildren(h('h2', null, 'Why it is not running'), reasonList((await call('ExplainRun', {name: run.name}, signal)).reasons));
    else why.replaceChildren();
    return !isFinal(run);
  }, signal);

  function showRest() {
    if (!run.attempts?.length) return;
    if (!logsShown) logs.replaceChildren(logView(() => run, signal));
    logsShown = true;
    if (chartShown) return;
    chartShown = true;
    learningChart(() => !isFinal(run), signal).then((chart) => {
      charts.replaceChildren(h('h2', null, 'Learning curve'), chart.element);
      return chart.show([{name: run.name, label: `run ${id}`}]);
    }).catch((error) => signal.aborted || charts.replaceChildren(h('p', {class: 'error'}, errorText(error))));
  }

  function show() {
    const seconds = run.start_time ? secondsBetween(run.start_time, run.finish_time) : undefined;
    head.replaceChildren(
      h('p', null, h('a', {href: `#/studies/${lastPart(parent)}`}, `${lastPart(parent)} ${study.display_name}`)),
      h('h1', null, `Run ${id}`),
      h('p', {class: 'bar-of'}, stateOf(run.state), keyText(run.key), ` repeat ${run.repeat ?? 0}`, seconds === undefined ? '' : h('span', {class: 'soft'}, duration(seconds))),
      run.message ? h('p', {class: run.state === 'FAILED' ? 'error' : ''}, run.message) : '');
    buttons.show(run);
    const last = run.attempts?.at(-1);
    nodes.replaceChildren(...nodeKinds(last).map(([names, kind]) => facts([['Nodes', names.join(', ')], ...kind])));
    nodes.prepend(h('summary', null, 'Hardware and software'));
    nodes.hidden = !last?.node_infos?.length;
    code.replaceChildren(h('summary', null, 'Code'), facts(codeFacts(last?.code ?? {})));
    code.hidden = !last?.code;
    results.replaceChildren(h('h2', null, 'Results'), run.summary && Object.keys(run.summary).length
      ? table('Metrics', [['Metric', 'wide'], ['Value', 'number']], Object.entries(run.summary).sort().map(([key, value]) => [key, number(value, 6)]))
      : h('p', {class: 'soft'}, 'A run has results when it has succeeded.'));
    attempts.replaceChildren(table('Attempts', [['Attempt', 'number'], ['State'], ['Nodes', 'wide'], ['Started'], ['Took', 'number'], ['Exit', 'number'], ['Message', 'wide']],
      (run.attempts ?? []).map((attempt) => [attempt.number, stateOf(attempt.state === 'ASSIGNED' ? 'QUEUED' : attempt.state === 'STOPPING' ? 'RUNNING' : attempt.state),
          (attempt.nodes ?? []).join(', ') || '–', time(attempt.start_time), attempt.start_time ? duration(secondsBetween(attempt.start_time, attempt.finish_time)) : '–',
          attempt.exit_status ?? '–', [attempt.cause ? `${attempt.cause.toLowerCase()}: ` : '', attempt.message ?? '']])));
  }
}

// One study: its progress, live, and its parts as tabs.
import {actionBar} from './actions.mjs';
import {call, follow, persist, repeat} from './api.mjs';
import {curvesTab} from './curves.mjs';
import {allocationTables} from './cluster.mjs';
import {duration, errorText, h, keyText, lastPart, number, progress, progressText, renew, secondsBetween, stateOf, table, time} from './dom.mjs';
import {gridTab} from './grid.mjs';
import {learningTab} from './learning.mjs';
import {isFinal} from './states.mjs';

const ACTIONS = [
  {title: 'Hold', method: 'HoldStudy', offered: (study) => !isFinal(study) && !study.held},
  {title: 'Release', method: 'ReleaseStudy', offered: (study) => !isFinal(study) && study.held},
  {title: 'Resume', method: 'ResumeStudy', offered: (study) => study.pause_reason},
  {title: 'Retry failed runs', method: 'RetryStudy', offered: (study) => study.counts?.failed},
  {title: 'Cancel study', method: 'CancelStudy', offered: (study) => !isFinal(study), kind: 'danger',
    question: ({name}) => `Cancel ${name}? Running attempts are stopped, and queued runs are not run.`},
];
const TABS = [['runs', 'Runs', gridTab], ['curves', 'Curves', curvesTab], ['learning', 'Learning curves', learningTab],
  ['allocations', 'Allocations', allocationsTab], ['explain', 'Explain', explainTab], ['specification', 'Specification', specificationTab]];

export async function studyPage(main, {parts: [number, tab], identity, signal}) {
  const name = `studies/${number}`;
  const view = {name, identity, signal, study: (await call('GetStudy', {name}, signal)).study, running: [], listeners: new Set()};
  view.name = view.study.name;
  document.title = `${view.study.display_name} – scalelab`;
  const head = h('div');
  const buttons = actionBar(ACTIONS, ({study}) => {
    if (signal.aborted) return;
    // The stream of a final study has ended; the page begins anew.
    if (isFinal(view.study)) return dispatchEvent(new HashChangeEvent('hashchange'));
    view.study = {...study, spec: study.spec ?? view.study.spec};
    showHead();
  });
  const live = h('section');
  const panel = h('div', {role: 'tabpanel', id: 'panel', tabindex: '0'});
  const tabs = h('div', {class: 'tabs', role: 'tablist', 'aria-label': 'Parts of the study'});
  main.replaceChildren(head, identity.mayControl(view.study) ? buttons.element : '', live, tabs, panel);
  showHead();
  showTabs();

  follow('WatchStudy', {name: view.name}, (state) => {
    const spec = state.study.spec ?? view.study.spec;
    Object.assign(view, {study: {...state.study, spec}, running: state.running ?? [], waiting: state.waiting_reason ?? ''});
    showHead();
    for (const listener of view.listeners) listener();
  }, signal).catch((error) => !signal.aborted && live.replaceChildren(h('p', {class: 'error'}, errorText(error))));

  function showHead() {
    const {study} = view;
    const seconds = study.start_time ? secondsBetween(study.start_time, study.finish_time) : undefined;
    head.replaceChildren(
      h('h1', null, `${lastPart(study.name)} ${study.display_name}`),
      h('p', {class: 'bar-of'}, stateOf(study.state), study.held ? 'held' : '', progress(study.counts), h('span', {role: 'status'}, progressText(study.counts))),
      h('p', {class: 'soft'}, `of ${study.owner}, submitted `, time(study.create_time), seconds === undefined ? '' : isFinal(study) ? `, took ${duration(seconds)}` : `, running for ${duration(seconds)}`),
      study.pause_reason ? h('p', {class: 'error'}, `Paused: ${study.pause_reason}`) : '',
      view.waiting ? h('p', null, `Waits: ${view.waiting}`) : '');
    buttons.show(study);
    renew(live, view.running.length === 0 ? '' : runningTable(view.running));
  }

  function showTabs() {
    const chosen = TABS.find(([id]) => id === tab) ?? TABS[0];
    tabs.replaceChildren(...TABS.map(([id, title]) => h('button', {role: 'tab', id: `tab-${id}`, 'aria-controls': 'panel', 'aria-selected': String(id === chosen[0]),
      tabindex: id === chosen[0] ? '0' : '-1', on: {click: () => select(id), keydown: (event) => moveTab(event, id)}}, title)));
    panel.setAttribute('aria-labelledby', `tab-${chosen[0]}`);
    const inner = new AbortController();
    signal.addEventListener('abort', () => inner.abort());
    view.leaveTab?.abort();
    view.leaveTab = inner;
    view.listeners.clear();
    panel.replaceChildren(h('p', {class: 'soft'}, 'Loading …'));
    persist(() => chosen[2](panel, shared(view, inner.signal)), inner.signal).catch((error) => {
      if (!inner.signal.aborted) panel.replaceChildren(h('p', {class: 'error', role: 'alert'}, errorText(error)));
    });
  }
  function select(id) {
    tab = id;
    history.replaceState(null, '', `#/studies/${lastPart(view.name)}/${id}`);
    showTabs();
    document.getElementById(`tab-${id}`).focus();
  }
  function moveTab(event, id) {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (step) select(TABS[(TABS.findIndex(([other]) => other === id) + step + TABS.length) % TABS.length][0]);
  }
}

// What a tab sees of the study; `onChange` is called after each message of the stream.
function shared(view, signal) {
  return {signal, name: view.name, identity: view.identity, get study() { return view.study; }, get running() { return view.running; },
    onChange: (listener) => view.listeners.add(listener)};
}

function runningTable(running) {
  const percent = (p) => Number(p.total_steps) > 0 ? Math.min(100, 100 * Number(p.step ?? 0) / Number(p.total_steps)) : 0;
  return table('Running now', [['Run'], ['Cell', 'wide'], ['Step', 'number'], ['Progress'], ['Loss', 'number']],
    running.slice(0, 20).map((p) => [h('a', {href: `#/runs/${lastPart(p.run)}`}, lastPart(p.run)), `${keyText(p.key)} repeat ${p.repeat ?? 0}`,
      `${p.step ?? 0}${p.total_steps ? ` of ${p.total_steps}` : ''}`,
      p.total_steps ? h('div', {class: 'progress', role: 'img', 'aria-label': `${Math.round(percent(p))}%`}, h('i', {style: {width: `${percent(p)}%`, background: 'var(--RUNNING)'}})) : '–',
      p.train_loss === undefined ? '–' : number(p.train_loss)]));
}

async function allocationsTab(panel, view) {
  const {name, signal} = view;
  await repeat(5000, async () => {
    const final = isFinal(view.study);  // an answer that was requested before the end may be older than the end
    const cluster = await call('GetCluster', {}, signal);
    const ours = (cluster.allocations ?? []).filter((allocation) => allocation.study === name);
    renew(panel, ...allocationTables({...cluster, allocations: ours,
      workers: (cluster.workers ?? []).filter((worker) => ours.some((allocation) => allocation.name === worker.allocation))}));
    return !final || ours.length > 0;  // the allocations end some time after the study
  }, signal);
}

async function explainTab(panel, view) {
  await repeat(5000, async () => {
    const final = isFinal(view.study);
    const {reasons} = await call('ExplainStudy', {name: view.name}, view.signal);
    panel.replaceChildren(h('h2', null, 'Why the rest is not running'), reasonList(reasons));
    return !final;
  }, view.signal);
}

export const reasonList = (reasons) => h('ol', null, (reasons ?? []).map((reason) => h('li', null, reason.message,
  reason.since_time ? [' (since ', time(reason.since_time), ')'] : null,
  reason.next_try_time ? ['; next attempt at ', time(reason.next_try_time)] : null)));

async function specificationTab(panel, {study}) {
  const {spec} = study;
  panel.replaceChildren(h('h2', null, 'Specification as submitted'),
    h('pre', {class: 'log', tabindex: '0'}, JSON.stringify(spec, null, 2)),
    h('p', {class: 'soft'}, `The study file: scalelab study get ${lastPart(study.name)}`));
}

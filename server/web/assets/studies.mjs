// All studies with their progress.
import {call, repeat} from './api.mjs';
import {h, lastPart, progress, progressText, renew, stateOf, table, time} from './dom.mjs';

const STEP = 50;

export async function studiesPage(main, {signal}) {
  document.title = 'Studies – scalelab';
  const list = h('div');
  const more = h('button', {hidden: true, on: {click: () => { size += STEP; refresh(); }}}, 'Show more');
  main.replaceChildren(h('h1', null, 'Studies'), list, h('p', null, more));
  let size = STEP;
  let shown = '';

  async function refresh() {
    const answer = await call('ListStudies', {page_size: Math.min(size, 1000)}, signal);
    const text = JSON.stringify(answer);
    if (text === shown) return;
    shown = text;
    renew(list, table('Newest first', [['Study', 'key'], ['State'], ['Progress'], ['Runs', 'hide-narrow wide'], ['Owner', 'hide-narrow'], ['Submitted', 'hide-narrow']],
      (answer.studies ?? []).map((study) => [
        h('a', {href: `#/studies/${lastPart(study.name)}`}, `${lastPart(study.name)} ${study.display_name ?? ''}`),
        [stateOf(study.state), study.held ? ' (held)' : '', study.pause_reason ? ' (paused)' : ''],
        progress(study.counts), progressText(study.counts), study.owner, time(study.create_time),
      ]), 'no studies yet; the command `scalelab study submit FILE` or the page Submit adds one'));
    more.hidden = !answer.next_page_token || size >= 1000;
  }
  await refresh();
  repeat(3000, refresh, signal);
}

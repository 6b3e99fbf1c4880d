// All studies with their progress.
import {pages, repeat} from './api.mjs';
import {h, lastPart, progress, progressText, renew, stateOf, table, time} from './dom.mjs';

const STEP = 50;
const MOST_PER_CALL = 1000;

export async function studiesPage(main, {signal}) {
  document.title = 'Studies – scalelab';
  const list = h('div');
  const more = h('button', {hidden: true, on: {click: () => { size += STEP; refresh(); }}}, 'Show more');
  main.replaceChildren(h('h1', null, 'Studies'), list, h('p', null, more));
  let size = STEP;
  let shown = '';

  async function refresh() {
    const studies = [];
    let further = false;
    for await (const answer of pages('ListStudies', {page_size: Math.min(size, MOST_PER_CALL)}, signal)) {
      studies.push(...answer.studies ?? []);
      further = Boolean(answer.next_page_token);
      if (studies.length >= size) break;
    }
    const text = JSON.stringify([studies, further]);
    if (text === shown) return;
    shown = text;
    renew(list, table('Newest first', [['Study', 'key'], ['State'], ['Progress'], ['Runs', 'hide-narrow wide'], ['Owner', 'hide-narrow'], ['Submitted', 'hide-narrow']],
      studies.map((study) => [
        h('a', {href: `#/studies/${lastPart(study.name)}`}, `${lastPart(study.name)} ${study.display_name ?? ''}`),
        [stateOf(study.state), study.held ? ' (held)' : '', study.pause_reason ? ' (paused)' : ''],
        progress(study.counts), progressText(study.counts), study.owner, time(study.create_time),
      ]), 'no studies yet; the command `scalelab study submit FILE` or the page Submit adds one'));
    more.hidden = !further;
  }
  await refresh();
  repeat(3000, refresh, signal);
}

// The output of a rank, which is followed while the run is not final.
import {collect, repeat} from './api.mjs';
import {errorText, h} from './dom.mjs';
import {isFinal} from './states.mjs';

const FIRST = 256 << 10;  // bytes from the end
const MOST = 2 << 20;     // characters on the page

/** The logs of the last attempt of a run, also of one that begins later. `current()`: the run as it is now. */
export function logView(current, signal) {
  const {name, spec, key} = current();
  const ranks = Number(spec?.ranks ?? key?.ranks ?? 1);
  const stream = h('select', {id: 'log-stream', on: {change: restart}}, h('option', {value: 'STDOUT'}, 'standard output'), h('option', {value: 'STDERR'}, 'standard error'));
  const rank = h('input', {id: 'log-rank', type: 'number', min: '0', max: String(ranks - 1), value: '0', on: {change: restart}});
  const follow = h('input', {id: 'log-follow', type: 'checkbox', checked: true});
  const text = h('pre', {class: 'log', tabindex: '0', role: 'region', 'aria-label': 'Output'});
  const note = h('p', {class: 'soft', role: 'status'});
  let inner = new AbortController();
  signal.addEventListener('abort', () => inner.abort());

  function restart() {
    inner.abort();
    inner = new AbortController();
    read(inner.signal);
  }

  async function read(stop) {
    let attempt;
    let decoder;
    let offset;
    let lastLook = false;
    await repeat(1500, async () => {
      const run = current();
      const more = !isFinal(run);
      const newest = run.attempts?.at(-1)?.number ?? 0;
      if (newest !== attempt) {
        attempt = newest;
        decoder = new TextDecoder();
        offset = -FIRST;
        text.textContent = note.textContent = '';
      }
      try {
        const pieces = await collect('ReadRunLog', {name, attempt, rank: Number(rank.value), stream: stream.value, offset}, stop);
        for (const piece of pieces) {
          const bytes = Uint8Array.from(atob(piece.data), (c) => c.charCodeAt(0));
          if (offset < 0 && Number(piece.offset ?? 0) > 0) note.textContent = `The last ${FIRST >> 10} KiB of the output; scalelab run logs prints all of it.`;
          offset = Number(piece.offset ?? 0) + bytes.length;
          append(decoder.decode(bytes, {stream: true}));
        }
        if (note.textContent.startsWith('No')) note.textContent = '';
        if (!pieces.length && text.textContent === '') note.textContent = more ? 'Nothing yet.' : 'No output.';
      } catch (error) {
        if (stop.aborted) return false;
        if (error.code !== 'NOT_FOUND') throw error;
        note.textContent = more ? 'No output yet.' : 'No output.';
      }
      const again = !lastLook;
      lastLook = !more;
      return more || again;
    }, stop).catch((error) => { note.textContent = errorText(error); });
  }

  function append(added) {
    if (!added) return;
    // eslint-disable-next-line no-control-regex
    text.append(added.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, ''));
    if (text.textContent.length > MOST) text.textContent = text.textContent.slice(-MOST / 2);
    if (follow.checked) text.scrollTop = text.scrollHeight;
  }

  read(inner.signal);
  return h('div', null, h('h2', null, 'Log'), h('p', {class: 'bar-of'}, h('label', {for: 'log-rank'}, 'Rank ', rank), h('label', {for: 'log-stream'}, 'Output ', stream),
    h('label', {for: 'log-follow'}, follow, ' scroll to new lines')), note, text);
}

// The output of a rank, which is followed while the run is not final.
import {collect, repeat} from './api.mjs';
import {errorText, h} from './dom.mjs';
import {isFinal} from './states.mjs';

const FIRST = 256 << 10;  // bytes from the end
const MOST = 2 << 20;     // characters on the page
const MARK = '[scalelab-worker cut this file here';  // of worker/process/output_limit.h

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
    let cut;  // the worker has cut the output since the last look
    let lastLook = false;
    await repeat(1500, async () => {
      const run = current();
      const more = !isFinal(run);
      const newest = run.attempts?.at(-1)?.number ?? 0;
      if (newest !== attempt) {
        attempt = newest;
        decoder = new TextDecoder();
        offset = -FIRST;
        cut = false;
        text.textContent = note.textContent = '';
      }
      try {
        const look = () => collect('ReadRunLog', {name, attempt, rank: Number(rank.value), stream: stream.value, offset}, stop);
        const pieces = await look().catch((error) => {
          if (error.code !== 'OUT_OF_RANGE') throw error;
          cut = true;
          offset = -FIRST;
          return look();
        });
        let bytes = pieces.map((piece) => atob(piece.data)).join('');  // a character for each byte
        const from = Number(pieces[0]?.offset ?? 0);
        if (cut) {
          decoder = new TextDecoder();
          const mark = bytes.indexOf(MARK);
          append(mark < 0 ? '\n[The worker cut this output, which was too long. A part of it is missing here.]\n' : '\n');
          if (pieces.length) offset = from + bytes.length;
          cut = false;
          bytes = bytes.slice(mark >= 0 ? mark : from > 0 ? bytes.indexOf('\n') + 1 : 0);
        } else if (pieces.length) {
          if (offset < 0 && from > 0) note.textContent = `The last ${FIRST >> 10} KiB of the output; scalelab run logs prints all of it.`;
          offset = from + bytes.length;
        }
        append(decoder.decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0)), {stream: true}));
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

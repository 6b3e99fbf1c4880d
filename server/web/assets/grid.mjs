// The runs of a study as a heat map of their states, and as a list.
import {call, repeat} from './api.mjs';
import {h, keyText, lastPart, number, painter, renew, RUN_STATES, stateOf, symbol, table} from './dom.mjs';
import {readRuns, readStates, stateAt} from './runs.mjs';
import {isFinal} from './states.mjs';

const SIZE = 16;      // of a symbol, in CSS pixels
const STEP = 19;      // from symbol to symbol
const MOST_PER_LINE = 50;  // symbols side by side in one cell
const ROWS_OF_LIST = 50;

export async function gridTab(panel, view) {
  const {name, signal} = view;
  const map = heatMap((run) => { location.hash = `#/runs/${lastPart(run.name)}`; }, signal);
  const legend = h('ul', {class: 'legend', 'aria-label': 'Legend'});
  const list = h('div');
  const filter = h('select', {id: 'state-filter', on: {change: () => showList(0)}}, h('option', {value: ''}, 'all states'),
    RUN_STATES.map((state) => h('option', {value: state}, state.toLowerCase())));
  panel.replaceChildren(h('h2', null, 'Grid'), legend, map.element,
    h('section', null, h('h2', null, 'List of runs'), h('p', null, h('label', {for: 'state-filter'}, 'Show ', filter)), list));

  let runs = [];
  let at = 0;
  const outdated = new Set();  // runs whose results and messages may have changed since they were read
  // These counts are older than the states that are read next, so a change in between is noticed.
  let counts = JSON.stringify(view.study.counts);
  const states = await readStates(name, signal);
  map.setStates(states);
  showLegend();
  runs = await readRuns(name, signal);
  map.setRuns(runs);
  applyStates(await readStates(name, signal));
  showLegend();
  showList(0);

  // WatchStudy says that something has changed, but not which runs.
  let changed = counts !== JSON.stringify(view.study.counts);
  view.onChange(() => {
    showLegend();
    changed ||= counts !== JSON.stringify(view.study.counts);
  });
  await repeat(2000, async () => {
    if (changed) {
      const before = JSON.stringify(view.study.counts);
      applyStates(await readStates(name, signal));
      counts = before;
      changed = counts !== JSON.stringify(view.study.counts);
      showList(at);
    }
    // The states come without results and messages.
    const listed = chosen().slice(at, at + ROWS_OF_LIST).filter((run) => outdated.has(run));
    for (const run of listed) update(run, (await call('GetRun', {name: run.name}, signal)).run);
    if (listed.length) showList(at);
    return changed || !isFinal(view.study);
  }, signal);
  if (signal.aborted || outdated.size === 0) return;
  (await readRuns(name, signal)).forEach((now, i) => runs[i] && update(runs[i], now));
  showList(at);

  function update(run, now) {
    Object.assign(run, {message: '', summary: {}}, now);
    outdated.delete(run);
  }
  function applyStates(bytes) {
    runs.forEach((run, i) => {
      const ended = isFinal(run);
      const state = stateAt(bytes, i) ?? run.state;
      if (state !== run.state && (ended || isFinal({state}))) outdated.add(run);
      run.state = state;
    });
    map.setStates(bytes);
  }
  function chosen() { return filter.value ? runs.filter((run) => run.state === filter.value) : runs; }
  function showLegend() {
    legend.replaceChildren(...RUN_STATES.map((state) => h('li', null, symbol(state),
      `${state.toLowerCase()} ${(view.study.counts?.[state.toLowerCase()] ?? 0).toLocaleString('en')}`)));
  }
  function showList(from) {
    at = from;
    const all = chosen();
    const turn = (title, step, enabled) => h('button', {disabled: !enabled, on: {click: () => showList(at + step)}}, title);
    renew(list,
      table(`Runs ${Math.min(at + 1, all.length)} to ${Math.min(at + ROWS_OF_LIST, all.length)} of ${all.length.toLocaleString('en')}`,
        [['Run'], ['State'], ['Cell', 'wide'], ['Repeat', 'number'], ['Samples/s', 'number'], ['Message', 'wide hide-narrow']],
        all.slice(at, at + ROWS_OF_LIST).map((run) => [h('a', {href: `#/runs/${lastPart(run.name)}`}, lastPart(run.name)), stateOf(run.state), keyText(run.key),
          run.repeat ?? 0, number(run.summary?.['run/throughput']), run.message ?? ''])),
      all.length <= ROWS_OF_LIST ? '' : h('p', {class: 'bar-of'}, turn('Previous', -ROWS_OF_LIST, at > 0), turn('Next', ROWS_OF_LIST, at + ROWS_OF_LIST < all.length)));
  }
}

// Places runs: a line for each value of the other axes, a column for each number of ranks, repeats side by side.
function layoutOf(runs) {
  const columns = [...new Set(runs.map((run) => run.key?.ranks))].filter((ranks) => ranks !== undefined).sort((a, b) => a - b);
  const lines = new Map();
  let repeats = 1;
  for (const [i, run] of runs.entries()) {
    const label = keyText(run.key, ['ranks']) || (columns.length ? 'all cells' : 'the cell');
    if (!lines.has(label)) lines.set(label, columns.length ? columns.map(() => []) : [[]]);
    const cell = lines.get(label)[Math.max(0, columns.indexOf(run.key?.ranks))];
    cell[run.repeat ?? 0] = i;
    repeats = Math.max(repeats, cell.length);
  }
  const sorted = [...lines.entries()].sort(([a], [b]) => a.localeCompare(b, 'en', {numeric: true}));
  return {columns, lines: sorted, repeats, perLine: 1, high: 1};
}

// Before the cells are known: the runs in the order of execution.
function orderLayout(count) {
  const per = MOST_PER_LINE;
  const lines = [];
  for (let from = 0; from < count; from += per) lines.push([`from ${from}`, [Array.from({length: Math.min(per, count - from)}, (_, i) => from + i)]]);
  return {columns: [], lines, repeats: per, perLine: 1, high: 1};
}

/** A canvas that draws only the visible lines. Arrow keys move a cursor, Enter opens the run. */
function heatMap(open, signal) {
  const canvas = h('canvas', {'aria-hidden': 'true'});
  const space = h('div');
  const box = h('div', {class: 'heat', tabindex: '0', role: 'application', 'aria-label': 'Heat map of runs: arrow keys move, Enter opens a run', 'aria-describedby': 'heat-info'}, canvas, space);
  const info = h('p', {id: 'heat-info', role: 'status', class: 'soft'}, 'Arrow keys move, Enter opens a run.');
  let layout = orderLayout(0);
  let runs = [];
  let states = '';
  let cursor = null;  // [line, column, repeat]
  let frame = 0;
  let label = 0;      // width of the labels
  const head = 24;

  const cellWidth = () => layout.perLine * STEP + 14;
  const lineHeight = () => layout.high * STEP + 6;
  const redraw = () => { frame ||= requestAnimationFrame(draw); };
  const indexAt = ([line, column, repeat]) => layout.lines[line]?.[1][column]?.[repeat];

  function resize() {
    const context = canvas.getContext('2d');
    context.font = '13px system-ui, sans-serif';
    const longest = Math.max(40, ...layout.lines.slice(0, 500).map(([text]) => context.measureText(text).width));
    label = Math.min(longest + 16, Math.max(90, box.clientWidth * 0.4));
    const columns = Math.max(1, layout.columns.length);
    // Repeats take several rows of symbols if there is not enough room for one.
    const room = Math.floor(((box.clientWidth - label) / columns - 14) / STEP);
    layout.perLine = Math.min(layout.repeats, MOST_PER_LINE, Math.max(5, room));
    layout.high = Math.ceil(layout.repeats / layout.perLine);
    const width = Math.max(box.clientWidth, label + columns * cellWidth());
    const height = head + layout.lines.length * lineHeight();
    box.style.height = `min(65vh, ${height + 20}px)`;
    const seen = [box.clientWidth, Math.min(box.clientHeight, height)];
    const scale = devicePixelRatio;
    canvas.width = seen[0] * scale;
    canvas.height = seen[1] * scale;
    canvas.style.width = `${seen[0]}px`;
    canvas.style.height = `${seen[1]}px`;
    space.style.width = `${width}px`;
    space.style.height = `${Math.max(0, height - seen[1])}px`;
    redraw();
  }

  function draw() {
    frame = 0;
    const context = canvas.getContext('2d');
    const scale = devicePixelRatio;
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue('--text');
    const back = style.getPropertyValue('--back');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = back;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.font = '13px system-ui, sans-serif';
    context.textBaseline = 'middle';
    const paint = painter(context, SIZE);
    const high = lineHeight();
    const [left, top, wide, tall] = [box.scrollLeft, box.scrollTop, canvas.width / scale, canvas.height / scale];
    const first = Math.max(0, Math.floor((top) / high));
    for (let line = first; line < layout.lines.length && head + line * high - top < tall; ++line) {
      const y = head + line * high - top + 3;
      layout.lines[line][1].forEach((cell, column) => {
        const x = label + column * cellWidth() - left;
        if (x + cellWidth() < label || x > wide) return;
        cell.forEach((index, repeat) => {
          const [px, py] = [x + (repeat % layout.perLine) * STEP, y + Math.floor(repeat / layout.perLine) * STEP];
          paint(stateAt(states, index) ?? 'QUEUED', px, py);
          if (!cursor || cursor[0] !== line || cursor[1] !== column || cursor[2] !== repeat) return;
          context.strokeStyle = text;
          context.lineWidth = 2;
          context.strokeRect(px - 1.5, py - 1.5, SIZE + 3, SIZE + 3);
        });
      });
      context.fillStyle = back;
      context.fillRect(0, y - 3, label - 4, high);
      context.fillStyle = text;
      const whole = layout.lines[line][0];
      fitText(context, context.measureText(whole).width > label - 14 ? valuesOf(whole) : whole, 6, y + SIZE / 2, label - 14);
    }
    context.fillStyle = back;
    context.fillRect(0, 0, wide, head);
    context.fillStyle = text;
    layout.columns.forEach((ranks, column) => fitText(context, `${ranks} rank${ranks === 1 ? '' : 's'}`, label + column * cellWidth() - left, head / 2, Math.max(40, cellWidth() - 4)));
    context.fillStyle = back;
    context.fillRect(0, 0, label - 4, head);
    context.fillStyle = text;
    fitText(context, layout.columns.length ? 'cell' : '', 6, head / 2, label - 14);
  }

  function moveTo(position) {
    const index = indexAt(position);
    if (index === undefined) return;
    cursor = position;
    const y = head + cursor[0] * lineHeight();
    if (y - head < box.scrollTop) box.scrollTop = y - head;
    if (y + lineHeight() > box.scrollTop + box.clientHeight) box.scrollTop = y + lineHeight() - box.clientHeight;
    const x = label + cursor[1] * cellWidth() + (cursor[2] % layout.perLine) * STEP;
    if (x - label < box.scrollLeft) box.scrollLeft = x - label;
    if (x + STEP > box.scrollLeft + box.clientWidth) box.scrollLeft = x + STEP - box.clientWidth;
    const run = runs[index];
    info.textContent = run ? `Run ${lastPart(run.name)}: ${(run.state ?? 'QUEUED').toLowerCase()}, ${keyText(run.key)} repeat ${run.repeat ?? 0}${run.message ? `. ${run.message}` : ''}` : '';
    redraw();
  }

  // The run at a position of the pointer.
  function hit(event) {
    const bounds = canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left + box.scrollLeft - label;
    const y = event.clientY - bounds.top + box.scrollTop - head;
    if (x < 0 || y < 0) return null;
    const column = Math.floor(x / cellWidth());
    const line = Math.floor(y / lineHeight());
    const repeat = Math.floor((y - line * lineHeight()) / STEP) * layout.perLine + Math.floor((x - column * cellWidth()) / STEP);
    return indexAt([line, column, repeat]) === undefined ? null : [line, column, repeat];
  }

  function key(event) {
    if (runs.length === 0) return;  // the places of the runs are not known yet
    const moves = {ArrowDown: [1, 0, 0], ArrowUp: [-1, 0, 0], PageDown: [10, 0, 0], PageUp: [-10, 0, 0]};
    const [line, column, repeat] = cursor ?? [0, 0, 0];
    if (event.key === 'Enter' && cursor && runs.length) return open(runs[indexAt(cursor)]);
    if (event.key === 'Home') moveTo([0, 0, 0]);
    else if (event.key === 'End') moveTo([layout.lines.length - 1, 0, 0]);
    else if (event.key === 'ArrowRight') indexAt([line, column, repeat + 1]) !== undefined ? moveTo([line, column, repeat + (cursor ? 1 : 0)]) : moveTo([line, column + 1, 0]);
    else if (event.key === 'ArrowLeft') repeat > 0 ? moveTo([line, column, repeat - 1]) : moveTo([line, column - 1, Math.max(0, (layout.lines[line]?.[1][column - 1]?.length ?? 1) - 1)]);
    else if (moves[event.key]) moveTo([Math.min(layout.lines.length - 1, Math.max(0, line + (cursor ? moves[event.key][0] : 0))), column, repeat]);
    else return;
    event.preventDefault();
  }

  box.addEventListener('scroll', redraw);
  box.addEventListener('keydown', key);
  box.addEventListener('pointermove', (event) => { const position = hit(event); if (position) moveTo(position); });
  box.addEventListener('click', (event) => { const position = hit(event); if (position && runs.length) open(runs[indexAt(position)]); });
  addEventListener('resize', resize, {signal});
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw, {signal});

  return {
    element: h('div', null, box, info),
    setStates(bytes) {
      states = bytes;
      if (runs.length === 0) layout = orderLayout(states.length);
      if (runs.length === 0) resize();
      else redraw();
    },
    setRuns(list) {
      runs = list;
      cursor = null;  // its place may not exist in this layout
      layout = layoutOf(runs);
      resize();
    },
  };
}

// "learning_rate=0.1 momentum=0.9" without the names, for labels that have no room for them.
const valuesOf = (text) => text.replace(/(^| )[\w.]+=/g, '$1');

function fitText(context, text, x, y, width) {
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > width) shown = `${shown.slice(0, Math.max(1, Math.floor(shown.length * 0.9) - 1))}…`;
  context.fillText(shown, x, y);
}

// Checks and submits a study file.
import {call} from './api.mjs';
import {errorText, facts, h, lastPart, number, table} from './dom.mjs';

const LARGEST = 900_000;  // characters; the server accepts requests of 1 MiB
const LARGEST_STORED = 100_000;  // characters; the specification must fit into the same request
const TEMPLATE = `study: my-study
fixed:
  engine: native/ddp
  model: resnet20
  dataset: synthetic
  epochs: 1
matrix:
  ranks: [1, 2]
scaling: {mode: strong, global_batch: 64}
repeats: 3
`;

// crypto.randomUUID does not exist on pages of http:// except those of this machine.
const randomId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');

export async function submitPage(main, {identity, signal}) {
  document.title = 'Submit – scalelab';
  if (!identity.maySubmit) return main.replaceChildren(h('h1', null, 'Submit'), h('p', null, 'This login may only read.'));
  const text = h('textarea', {id: 'study', spellcheck: 'false', autocomplete: 'off', on: {input: () => { request = null; }}});
  text.value = TEMPLATE;
  const file = h('input', {type: 'file', id: 'file', accept: '.yaml,.yml', on: {change: async () => {
    if (file.files[0]) text.value = await file.files[0].text();
    request = null;
  }}});
  const outcome = h('div', {role: 'status'});
  const check = h('button', {on: {click: () => run(plan)}}, 'Check');
  const submit = h('button', {class: 'main', on: {click: () => run(create)}}, 'Submit');
  let request = null;  // {id, spec, study_file} of this text, so that a repeated click submits one study
  main.replaceChildren(h('h1', null, 'Submit a study'),
    h('p', null, h('label', {for: 'file'}, 'Study file')), h('p', null, file),
    h('p', null, h('label', {for: 'study'}, 'Text of the study file (YAML)')), text,
    h('p', {class: 'bar-of'}, check, submit), outcome);

  async function parsed() {
    if (text.value.length > LARGEST) throw new Error('The text is too long for the dashboard; use scalelab study submit FILE.');
    if (request) return request;
    const read = text.value;
    const {spec} = await call('ParseStudy', {text: read}, signal);
    if (text.value !== read) throw new Error('The text has changed in the meantime. Click again to use the new text.');
    request = {id: randomId(), spec, study_file: read.length > LARGEST_STORED ? '' : read};
    return request;
  }

  async function run(work) {
    check.disabled = submit.disabled = true;
    outcome.replaceChildren(h('p', {class: 'soft'}, 'Asking the server …'));
    try {
      await work(await parsed());
    } catch (error) {
      if (!signal.aborted) outcome.replaceChildren(h('p', {class: 'error'}, errorText(error)));
    }
    check.disabled = submit.disabled = false;
  }

  async function create({id, spec, study_file}) {
    const {study} = await call('CreateStudy', {spec, request_id: `web-${id}`, study_file}, signal);
    location.hash = `#/studies/${lastPart(study.name)}`;
  }

  async function plan({spec}) {
    const answer = await call('PlanStudy', {spec}, signal);
    const cells = answer.cells ?? [];
    outcome.replaceChildren(h('section', {class: 'panel'}, h('h2', null, 'Plan'),
      facts([['Cells', cells.length], ['Runs', answer.runs ?? 0], ['Excluded cells', answer.excluded ?? 0], ['GPU-hours at most', answer.gpu_hours && number(answer.gpu_hours)],
        ['Node-hours, largest allocations', answer.node_hours_largest && number(answer.node_hours_largest)],
        ['Node-hours, own sizes', answer.node_hours_own && number(answer.node_hours_own)]]),
      (answer.unusable ?? []).map((sentence) => h('p', {class: 'soft'}, sentence)),
      table('Jobs', [['Nodes', 'number'], ['Ranks per node', 'number'], ['Time limit', 'number'], ['Runs', 'number']],
        (answer.allocations ?? []).map((a) => [a.nodes, a.ranks_per_node, `${Math.round(Number(a.time_seconds) / 60)} min`, a.runs]))));
  }
}

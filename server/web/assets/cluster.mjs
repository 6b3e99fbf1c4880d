// The scheduler, its nodes, and all allocations and workers.
import {call, repeat} from './api.mjs';
import {facts, h, lastPart, renew, stateOf, table, time} from './dom.mjs';

const ALLOCATION_STATES = {INTENDED: 'QUEUED', PENDING: 'QUEUED', RUNNING: 'RUNNING', RELEASING: 'RUNNING', ENDED: 'SUCCEEDED'};

function allocationState({state = 'INTENDED'}) {
  const element = stateOf(ALLOCATION_STATES[state]);
  element.lastChild.textContent = state.toLowerCase();
  return element;
}

/** Tables of the allocations and workers of a GetClusterResponse. */
export function allocationTables(cluster) {
  const study = (name) => name ? h('a', {href: `#/studies/${lastPart(name)}`}, lastPart(name)) : '–';
  const run = (name) => name ? h('a', {href: `#/runs/${lastPart(name)}`}, lastPart(name)) : '–';
  return [
    h('section', null, table('Allocations', [['Job', 'key'], ['State'], ['Study'], ['Run'], ['Size'], ['Nodes', 'wide'], ['Ends'], ['Reason', 'wide']],
      (cluster.allocations ?? []).map((a) => [a.external_id || lastPart(a.name).slice(0, 8), allocationState(a), study(a.study), run(a.run), `${a.nodes ?? 0} × ${a.slots_per_node ?? 0}`,
        (a.node_names ?? []).join(', ') || '–', time(a.end_time), a.reason ?? '']), 'none now')),
    h('section', null, table('Workers', [['Node', 'key'], ['Cores', 'number'], ['GPUs', 'wide'], ['Last call'], ['Version']],
      (cluster.workers ?? []).map((w) => [w.node, w.cpus ?? '–', (w.gpus ?? []).join(', ') || '–', time(w.last_seen_time), w.version ?? '']), 'none now')),
  ];
}

export async function clusterPage(main, {signal}) {
  document.title = 'Cluster – scalelab';
  const page = h('div');
  await repeat(5000, async () => {
    const cluster = await call('GetCluster', {}, signal);
    if (!page.isConnected) main.replaceChildren(page);
    renew(page, h('h1', null, 'Cluster'),
      facts([['Scheduler', cluster.scheduler], ['Slots', cluster.slots], ['Queued runs', cluster.queued_runs ?? 0], ['Live attempts', cluster.running_attempts ?? 0],
        ['scalelabd', cluster.version], ['Since', time(cluster.start_time)]]),
      cluster.drain_time ? h('p', {class: 'error'}, `The service is drained: no run begins. ${cluster.drain_reason ?? ''}`) : '',
      cluster.scheduler_error ? h('p', {class: 'error'}, `The scheduler does not answer: ${cluster.scheduler_error}`) : '',
      ...allocationTables(cluster),
      cluster.partitions?.length ? h('section', null, table('Partitions', [['Partition', 'key'], ['State'], ['Nodes', 'number'], ['Free nodes', 'number']],
        cluster.partitions.map((p) => [p.name + (p.is_default ? ' (default)' : ''), p.state, p.nodes ?? 0, p.idle_nodes ?? 0]))) : '',
      cluster.nodes?.length ? h('section', null, table('Nodes', [['Node', 'key'], ['State'], ['Cores used'], ['Use', 'hide-narrow'], ['GPUs used'], ['Reason', 'wide']],
        cluster.nodes.map((n) => [n.name, (n.state ?? '').toLowerCase(), `${n.cpus_allocated ?? 0} of ${n.cpus ?? 0}`, usage(n), n.gpus ? `${n.gpus_allocated ?? 0} of ${n.gpus}` : '–', n.reason ?? '']))) : '',
      cluster.avoided_nodes?.length ? h('section', null, table('Nodes that new jobs exclude', [['Node', 'key'], ['Failures', 'number'], ['Until'], ['Reason', 'wide']],
        cluster.avoided_nodes.map((n) => [n.name, n.failures, time(n.until_time), n.reason]))) : '');
  }, signal);
}

function usage({cpus = 0, cpus_allocated: used = 0}) {
  const percent = cpus ? 100 * used / cpus : 0;
  return h('div', {class: 'progress', role: 'img', 'aria-label': `${Math.round(percent)}% of the cores are used`}, h('i', {style: {width: `${percent}%`, background: 'var(--RUNNING)'}}));
}

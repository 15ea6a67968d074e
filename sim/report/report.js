'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const el = (id) => document.getElementById(id);
  const NS = 'http://www.w3.org/2000/svg';
  const svgNode = (parent, name, attributes, text) => {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };
  const node = (parent, name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  };
  const dashes = { fifo: '', lifo: '6 3', sorted: '2 2', lowest: '8 3 2 3', run: '', oracle: '3 4' };
  const colour = (name) => 'var(--' + (name in dashes ? name : 'oracle') + ')';
  const width = (name) => (name === 'run' ? 2.6 : 1.7);
  const short = (v) => {
    if (v === null || v === undefined || Number.isNaN(v)) return 'n/a';
    const a = Math.abs(v);
    if (a >= 1e9 || (a !== 0 && a < 1e-3)) return v.toExponential(1).replace('e+', 'e');
    if (a >= 1e6) return (v / 1e6).toFixed(1).replace(/\.0$/, '') + 'M';
    if (a >= 1e4) return (v / 1e3).toFixed(a >= 1e5 ? 0 : 1).replace(/\.0$/, '') + 'k';
    if (a >= 100) return v.toFixed(0);
    if (a >= 10) return v.toFixed(1).replace(/\.0$/, '');
    return String(+v.toFixed(3));
  };
  const tip = el('tip');
  const showTip = (event, text) => {
    tip.hidden = false;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX + 14, innerWidth - box.width - 8) + 'px';
    tip.style.top = Math.min(event.clientY + 14, innerHeight - box.height - 8) + 'px';
  };
  const hideTip = () => { tip.hidden = true; };

  // Ticks at round places: 1, 2, 5 times a power of ten, or powers on a log axis.
  const linearTicks = (low, high) => {
    const raw = (high - low) / 5 || 1;
    const base = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => s >= raw * 0.999);
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) ticks.push(+t.toPrecision(10));
    return ticks;
  };
  const logTicks = (low, high, base) => {
    const ticks = [];
    const span = Math.log(high / low) / Math.log(base);
    const stride = Math.max(1, Math.ceil(span / 7));
    for (let k = Math.ceil(Math.log(low) / Math.log(base) - 1e-9); Math.pow(base, k) <= high * (1 + 1e-9); k += stride) {
      ticks.push(Math.pow(base, k));
    }
    return ticks;
  };
  const scale = (low, high, from, to, log) => {
    if (!(high > low)) high = log ? low * 10 : low + 1;
    const f = log ? Math.log : (v) => v;
    const map = (v) => from + (f(v) - f(low)) / (f(high) - f(low)) * (to - from);
    map.low = low;
    map.high = high;
    return map;
  };

  // series: [{name, points: [[x, y]]}]; spec: {title, x, y, logX, logY, min, max, band, height, step}
  const lineChart = (parent, spec, series) => {
    const W = spec.width || 420, H = spec.height || 250, L = 48, R = 12, T = 8, B = 36;
    const figure = node(parent, 'figure', 'card');
    if (spec.title) node(figure, 'h3', '', spec.title);
    const svg = svgNode(figure, 'svg', { viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': spec.title || spec.y });
    let xs = [], ys = [];
    for (const s of series) {
      for (const [x, y] of s.points) {
        if (y === null || (spec.logY && y <= 0) || (spec.logX && x <= 0)) continue;
        xs.push(x);
        ys.push(y);
      }
    }
    if (xs.length === 0) {
      svgNode(svg, 'text', { x: W / 2, y: H / 2, 'text-anchor': 'middle' }, 'nothing to show');
      return;
    }
    const least = spec.min !== undefined ? spec.min : Math.min(...ys);
    const most = spec.max !== undefined ? spec.max : Math.max(...ys);
    const X = scale(spec.logX ? Math.min(...xs) : 0, Math.max(...xs), L, W - R, spec.logX);
    const Y = scale(spec.logY ? Math.pow(10, Math.floor(Math.log10(least))) : least,
      spec.logY ? Math.pow(10, Math.ceil(Math.log10(most * 1.0001))) : most, H - B, T, spec.logY);
    if (spec.band && spec.band[1] > spec.band[0]) {
      svgNode(svg, 'rect', { x: X(spec.band[0]), y: T, width: X(spec.band[1]) - X(spec.band[0]), height: H - B - T,
        fill: 'var(--band)' });
    }
    for (const t of spec.logY ? logTicks(Y.low, Y.high, 10) : linearTicks(Y.low, Y.high)) {
      svgNode(svg, 'line', { x1: L, x2: W - R, y1: Y(t), y2: Y(t), stroke: 'var(--line)' });
      svgNode(svg, 'text', { x: L - 6, y: Y(t) + 4, 'text-anchor': 'end' }, short(t));
    }
    for (const t of spec.logX ? logTicks(X.low, X.high, spec.logX) : linearTicks(X.low, X.high)) {
      svgNode(svg, 'line', { x1: X(t), x2: X(t), y1: H - B, y2: H - B + 4, stroke: 'var(--line)' });
      svgNode(svg, 'text', { x: X(t), y: H - B + 16, 'text-anchor': 'middle' }, short(t));
    }
    svgNode(svg, 'text', { x: (L + W - R) / 2, y: H - 3, 'text-anchor': 'middle' }, spec.x);
    if (spec.y) {
      svgNode(svg, 'text', { x: 0, y: 0, 'text-anchor': 'middle',
        transform: `translate(11 ${(T + H - B) / 2}) rotate(-90)` }, spec.y);
    }
    for (const s of series) {
      let path = '', pen = false, last = 0;
      for (const [x, y] of s.points) {
        if (y === null || (spec.logY && y <= 0) || (spec.logX && x <= 0)) { pen = false; continue; }
        const px = X(x).toFixed(1), py = Y(y).toFixed(1);
        if (pen && spec.step) path += `H${px}V${py}`;
        else path += (pen ? 'L' : 'M') + px + ' ' + py;
        pen = true;
        last = py;
      }
      svgNode(svg, 'path', { d: path, fill: 'none', stroke: colour(s.name), 'stroke-width': width(s.name),
        'stroke-dasharray': dashes[s.name] || '', 'stroke-linejoin': 'round' });
    }
    const cross = svgNode(svg, 'line', { y1: T, y2: H - B, stroke: 'var(--soft)', visibility: 'hidden' });
    const pane = svgNode(svg, 'rect', { x: L, y: T, width: W - R - L, height: H - B - T, fill: 'transparent' });
    pane.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * W;
      const lines = [];
      let where = null;
      for (const s of series) {
        let best = null;
        for (const p of s.points) {
          if (p[1] === null || (spec.logX && p[0] <= 0)) continue;
          if (best === null || Math.abs(X(p[0]) - at) < Math.abs(X(best[0]) - at)) best = p;
        }
        if (best === null) continue;
        where = where === null ? best[0] : where;
        lines.push(s.name.padEnd(8) + short(best[1]));
      }
      if (where === null) return;
      cross.setAttribute('x1', X(where));
      cross.setAttribute('x2', X(where));
      cross.setAttribute('visibility', 'visible');
      showTip(event, spec.x + ' ' + short(where) + '\n' + lines.join('\n'));
    });
    pane.addEventListener('pointerleave', () => { cross.setAttribute('visibility', 'hidden'); hideTip(); });
  };

  const barChart = (parent, spec, rows, oracle) => {
    const W = 420, rowH = 24, L = 62, R = 56, T = 14, H = T + rows.length * rowH + 22;
    const figure = node(parent, 'figure', 'card');
    node(figure, 'h3', '', spec.title);
    const svg = svgNode(figure, 'svg', { viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': spec.title });
    const values = rows.map((r) => r.value).concat(oracle === null ? [] : [oracle]).filter((v) => v !== null && v > 0);
    const high = spec.max || Math.max(...values, spec.log ? 10 : 1e-9);
    const low = spec.log ? Math.min(1, Math.pow(10, Math.floor(Math.log10(Math.min(...values, 1))))) : 0;
    const X = scale(low, high, L, W - R, spec.log);
    for (const t of spec.log ? logTicks(low, high, 10) : linearTicks(0, high)) {
      svgNode(svg, 'line', { x1: X(t), x2: X(t), y1: T, y2: T + rows.length * rowH, stroke: 'var(--line)' });
      svgNode(svg, 'text', { x: X(t), y: H - 5, 'text-anchor': 'middle' }, short(t));
    }
    rows.forEach((row, i) => {
      const y = T + i * rowH;
      svgNode(svg, 'text', { x: L - 8, y: y + 16, 'text-anchor': 'end', class: 'strong' }, row.name);
      if (row.value === null) {
        svgNode(svg, 'text', { x: L + 4, y: y + 16 }, 'n/a');
        return;
      }
      const w = spec.log && row.value <= low ? 1 : Math.max(1, X(row.value) - L);
      svgNode(svg, 'rect', { x: L, y: y + 4, width: w, height: rowH - 8, rx: 2, fill: colour(row.name) });
      svgNode(svg, 'text', { x: L + w + 5, y: y + 16, class: 'strong' }, short(row.value));
    });
    if (oracle !== null && oracle >= low) {
      svgNode(svg, 'line', { x1: X(oracle), x2: X(oracle), y1: T - 4, y2: T + rows.length * rowH + 2,
        stroke: 'var(--ink)', 'stroke-width': 1.5, 'stroke-dasharray': '3 2' });
      svgNode(svg, 'text', { x: Math.min(X(oracle), W - R), y: T - 6, 'text-anchor': oracle > (low + high) / 4 ? 'end' : 'start' },
        'oracle ' + short(oracle));
    }
  };

  const legend = (parent, names) => {
    parent.replaceChildren();
    for (const name of names) {
      const item = node(parent, 'span');
      const svg = svgNode(item, 'svg', { viewBox: '0 0 26 8' });
      svgNode(svg, 'line', { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour(name), 'stroke-width': width(name),
        'stroke-dasharray': dashes[name] || '' });
      item.appendChild(document.createTextNode(name));
    }
  };

  // Run classes: floor(log2(slots)); red for single slots to blue for a thousand and more.
  const stops = [[0, [206, 44, 32]], [3, [240, 140, 70]], [5, [226, 196, 110]], [7, [96, 170, 205]], [10, [28, 72, 158]]];
  const classColour = (k) => {
    k = Math.min(k, 10);
    let i = 0;
    while (i + 2 < stops.length && k > stops[i + 1][0]) ++i;
    const [a, ca] = stops[i], [b, cb] = stops[i + 1];
    return ca.map((c, j) => Math.round(c + (cb[j] - c) * Math.max(0, k - a) / (b - a)));
  };
  const drawMap = (parent, run) => {
    const figure = node(parent, 'figure', 'card');
    node(figure, 'h3', '', run.policy);
    const rows = run.map.length, columns = rows ? run.map[0].length / 2 : 0;
    if (!rows) { node(figure, 'p', 'note', 'no samples'); return; }
    const canvas = node(figure, 'canvas');
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext('2d');
    const image = context.createImageData(columns, rows);
    run.map.forEach((line, y) => {
      for (let x = 0; x < columns; ++x) {
        const used = line.charCodeAt(2 * x) - 48, cls = line.charCodeAt(2 * x + 1) - 97;
        const [r, g, b] = classColour(cls);
        image.data.set([r, g, b, used === 0 ? 0 : 55 + Math.round(200 * used / 9)], 4 * (y * columns + x));
      }
    });
    context.putImageData(image, 0, 0);
    canvas.addEventListener('pointermove', (event) => {
      const box = canvas.getBoundingClientRect();
      const x = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
      const y = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
      const used = run.map[y].charCodeAt(2 * x) - 48, cls = run.map[y].charCodeAt(2 * x + 1) - 97;
      showTip(event, `turnover ${short(run.turnovers[y])}, from page ${Math.floor(run.pool_pages * x / columns)}\n` +
        (used === 0 ? 'free' : `about ${Math.round(100 * used / 9)} % in use, runs of about ${Math.pow(2, cls)} slots`));
    });
    canvas.addEventListener('pointerleave', hideTip);
    const axis = node(figure, 'div', 'axis');
    node(axis, 'span', '', 'page 1');
    node(axis, 'span', '', `top: fresh; bottom: ${short(run.turnovers[rows - 1])} turnovers`);
    node(axis, 'span', '', 'page ' + run.pool_pages);
  };

  const table = (parent, head, rows) => {
    const t = node(parent, 'table');
    const h = node(node(t, 'thead'), 'tr');
    head.forEach((c) => node(h, 'th', '', c));
    const body = node(t, 'tbody');
    rows.forEach((r) => { const tr = node(body, 'tr'); r.forEach((c) => node(tr, 'td', '', c)); });
  };

  // Bars with least and most: rows [{name, low, value, high, how}], a line at the card's limit.
  const spreadChart = (parent, title, rows, limit) => {
    const W = 420, rowH = 22, L = 96, R = 110, T = 16, H = T + rows.length * rowH + 10;
    const figure = node(parent, 'figure', 'card');
    node(figure, 'h3', '', title);
    const svg = svgNode(figure, 'svg', { viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': title });
    const X = scale(0, Math.max(limit, ...rows.map((r) => r.high)), L, W - R, false);
    rows.forEach((r, i) => {
      const y = T + i * rowH;
      svgNode(svg, 'text', { x: L - 6, y: y + 13, 'text-anchor': 'end' }, r.name);
      svgNode(svg, 'rect', { x: L, y: y + 3, width: Math.max(1, X(r.value) - L), height: rowH - 9, fill: 'var(--run)' });
      svgNode(svg, 'line', { x1: X(r.low), x2: X(r.high), y1: y + 9, y2: y + 9, stroke: 'var(--ink)', 'stroke-width': 2 });
      svgNode(svg, 'text', { x: W - R + 6, y: y + 13 }, `${short(r.value)} ${r.how}`);
    });
    svgNode(svg, 'line', { x1: X(limit), x2: X(limit), y1: T, y2: H - 8, stroke: 'var(--ink)', 'stroke-dasharray': '3 2' });
    svgNode(svg, 'text', { x: X(limit), y: T - 4, 'text-anchor': 'end' }, 'limit ' + short(limit));
  };
  const stripMap = (parent, title, line) => {
    const figure = node(parent, 'figure', 'card');
    node(figure, 'h3', '', title);
    const canvas = node(figure, 'canvas');
    canvas.width = line.length / 2;
    canvas.height = 1;
    canvas.style.height = '18px';
    const context = canvas.getContext('2d');
    const image = context.createImageData(canvas.width, 1);
    for (let x = 0; x < canvas.width; ++x) {
      const used = line.charCodeAt(2 * x) - 48;
      const [r, g, b] = classColour(line.charCodeAt(2 * x + 1) - 97);
      image.data.set([r, g, b, used === 0 ? 0 : 55 + Math.round(200 * used / 9)], 4 * x);
    }
    context.putImageData(image, 0, 0);
  };
  const caseName = (f) => `${f.model}, ` + (f.shape.batch === 'live' ? `live sequences, ${f.shape.heads} heads, ${f.shape.q_len} query tokens` :
    `${f.shape.batch} x ${f.shape.length} tokens, ${f.shape.heads} heads, ${f.shape.q_len} query tokens`);
  const showCost = (runs) => {
    el('cost-section').hidden = !runs.some((r) => r.cost);
    el('cost-note').textContent = data.measured_on ? 'On: ' + data.measured_on : '';
    for (const r of runs.filter((run) => run.cost)) {
      const names = [...new Set(r.cost.bandwidth.map(caseName))];
      for (const name of names) {
        const mine = r.cost.bandwidth.filter((f) => caseName(f) === name);
        node(el('cost'), 'h3', '', `${r.policy}, page size ${r.page_size}: ${name}, rows of ${mine[0].row_bytes} bytes, ` +
          `${mine[0].layers} of ${mine[0].layers_of_the_model} layers`);
        const grid = node(el('cost'), 'div', 'grid');
        for (const kernel of [...new Set(mine.map((f) => f.kernel))]) {
          const rows = mine.filter((f) => f.kernel === kernel);
          spreadChart(grid, kernel + ', GB/s', rows.map((f) => ({ name: f.placement, low: f.gbps_min, value: f.gbps, high: f.gbps_max,
            how: f.how })), Math.max(...rows.map((f) => f.ceiling_gbps)));
        }
        for (const m of r.cost.maps.filter((map) => map.name === name)) {
          stripMap(grid, 'these sequences in the pool, churned', m.before);
          if (m.after) stripMap(grid, 'and straightened', m.after);
        }
        const moved = r.cost.transfers.filter((f) => caseName(f) === name);
        if (moved.length) {
          table(node(el('cost'), 'div', 'scroll'), ['transfer', 'placement', 'descriptors', 'MiB', 'ms', 'GB/s', 'least', 'most', 'limit', 'how'],
            moved.map((f) => [f.method.replaceAll('_', ' '), f.placement, short(f.descriptors), short(f.bytes / 1048576), short(f.ms),
              short(f.gbps), short(f.gbps_min), short(f.gbps_max), short(f.ceiling_gbps), f.how]));
        }
        for (const d of r.cost.defrag_cost.filter((f) => caseName(f) === name)) node(el('cost'), 'p', '', d.verdict + '.');
      }
      for (const text of r.cost.bandwidth_notes) node(el('cost'), 'p', 'note', text);
    }
  };

  const metricsOverTime = [
    ['contig_prefill', 'Prefill contiguity', { min: 0, max: 1 }],
    ['contig_decode', 'Decode contiguity', { min: 0, max: 1 }],
    ['run_mean', 'Mean run, slots', { logY: true }],
    ['tok_in_runs_64', 'Share of tokens in runs of 64 slots or more', { min: 0, max: 1 }],
    ['pages2m_ratio', '2 MiB regions touched, over the fewest possible', { logY: true }],
    ['returnable_2m', 'Free memory in whole 2 MiB regions', { min: 0, max: 1 }],
    ['frontier_waste', 'Frontier waste', { min: 0, max: 1 }],
    ['live_pages', 'Pages in use', { min: 0 }],
    ['descriptors', 'Runs a request', { logY: true }],
  ];

  const show = (pageSize) => {
    const runs = data.runs.filter((r) => r.page_size === pageSize);
    const names = runs.map((r) => r.policy);
    for (const button of el('tabs').children) {
      button.setAttribute('aria-pressed', String(Number(button.dataset.size) === pageSize));
    }
    for (const id of ['bars', 'lines', 'maps', 'cdf', 'free', 'table', 'parts', 'defrag', 'cost']) el(id).replaceChildren();
    const first = runs[0];

    const bar = (title, value, oracle, spec) =>
      barChart(el('bars'), { title, ...spec }, runs.map((r) => ({ name: r.policy, value: value(r) })), oracle);
    bar('Mean run, slots (log)', (r) => r.steady.run_mean, first.oracle.run_mean, { log: true });
    bar('Prefill contiguity', (r) => r.steady.contig_prefill, 1, { max: 1 });
    bar('Decode contiguity', (r) => r.steady.contig_decode, 1, { max: 1 });
    bar('Tokens in runs of 64 slots or more', (r) => r.steady.tok_in_runs_64, first.oracle.tok_in_runs_64, { max: 1 });
    bar('Runs a request (log; less is better)', (r) => r.steady.descriptors, 1, { log: true });
    bar('2 MiB regions touched, over the fewest (log; less is better)', (r) => r.steady.pages2m_ratio, 1, { log: true });

    legend(el('legend-lines'), names.concat(['oracle']));
    for (const [key, title, spec] of metricsOverTime) {
      const series = runs.map((r) => ({ name: r.policy, points: r.turnovers.map((t, i) => [t, r.series[key][i]]) }));
      if (key === 'run_mean') {
        series.push({ name: 'oracle', points: first.turnovers.map((t, i) => [t, first.oracle_run_mean[i]]) });
      }
      lineChart(el('lines'), { title, x: 'pool turnovers', band: first.band, ...spec }, series);
    }

    runs.forEach((r) => drawMap(el('maps'), r));

    const atLeast = (shares) => {
      const points = [];
      let rest = 1;
      shares.forEach((share, bin) => {
        points.push([data.bins[bin], Math.max(0, rest)]);
        rest -= share;
      });
      points.push([data.bins[shares.length], 0]);
      return points;
    };
    legend(el('legend-cdf'), names.concat(['oracle']));
    lineChart(el('cdf'), { x: 'run length, slots', y: 'share of tokens', logX: 2, min: 0, max: 1, width: 900, height: 320, step: true },
      runs.map((r) => ({ name: r.policy, points: atLeast(r.run_shares) }))
        .concat([{ name: 'oracle', points: atLeast(first.oracle_run_shares) }]));

    legend(el('legend-free'), names);
    lineChart(el('free'), { x: 'S, pages', y: 'F(S)', logX: 2, min: 0, max: 1, width: 900, height: 300 },
      runs.map((r) => ({ name: r.policy, points: r.F.map((f, j) => [Math.pow(2, j), f]) })));

    table(el('table'), ['policy', 'mean run', 'median run (tokens)', 'prefill', 'decode', 'runs / request', 'mergeable',
      'span', 'stride', 'waste in pages', 'blowup', 'free extents', 'requests', 'refused', 'alloc fails', 'preemptions',
      'fewest moves to pack', 'their copy, ms', 'read of all live, ms'],
      runs.map((r) => [r.policy, short(r.steady.run_mean), short(r.steady.run_p50w), short(r.steady.contig_prefill),
        short(r.steady.contig_decode), short(r.steady.descriptors), short(r.steady.mergeable), short(r.steady.span_ratio),
        short(r.steady.stride_regular), short(r.steady.internal_frag), short(r.blowup), short(r.steady.holes),
        r.requests, r.refused, r.alloc_fail, r.preemptions, short(r.moves_min), short(r.copy_ms), short(r.floor_ms)]));

    showCost(runs);
    const parts = [['prefix_cache', 'prefix cache'], ['speculation', 'speculation']].filter(([key]) => runs.some((r) => r[key]));
    el('parts-section').hidden = parts.length === 0;
    for (const [key, title] of parts) {
      const figures = Object.keys(runs.find((r) => r[key])[key]);
      table(el('parts'), [title].concat(names), figures.map((f) => [f.replaceAll('_', ' ')].concat(
        runs.map((r) => short(r[key] ? r[key][f] : null)))));
    }
    const moved = runs.filter((r) => r.defrag);
    el('defrag-section').hidden = moved.length === 0;
    for (const r of moved) node(el('defrag'), 'p', '', r.policy + ', ' + r.defrag.verdict + '.');
    if (moved.length) {
      const keys = Object.keys(moved[0].defrag).filter((k) => k !== 'verdict');
      const label = (k) => (k === 'break_even_steps' ? 'steps whose gain pays for the moves of one step' : k.replaceAll('_', ' '));
      table(el('defrag'), ['figure'].concat(moved.map((r) => r.policy)), keys.map((k) => [label(k)].concat(
        moved.map((r) => (k === 'break_even_steps' && r.defrag[k] === null ? 'never' : typeof r.defrag[k] === 'number' || r.defrag[k] === null ? short(r.defrag[k]) : r.defrag[k])))));
    }
  };

  // The steady samples form one stretch of each run.
  for (const r of data.runs) {
    const steady = r.turnovers.filter((_, i) => r.steady_flags[i]);
    r.band = steady.length ? [steady[0], steady[steady.length - 1]] : [0, 0];
  }
  const sizes = [...new Set(data.runs.map((r) => r.page_size))];
  const meta = data.meta;
  // Policies are compared at one page size: a mean run is at least a page long.
  const alike = data.runs.filter((r) => r.page_size === sizes[0]);
  const best = alike.reduce((a, b) => ((b.steady.run_mean || 0) > (a.steady.run_mean || 0) ? b : a));
  const worst = alike.reduce((a, b) => ((b.steady.run_mean || 0) < (a.steady.run_mean || 0) ? b : a));
  const turned = Math.min(...alike.map((r) => r.turnovers[r.turnovers.length - 1] || 0)) >= 1;
  el('lead').textContent = `${meta.requests} requests of ${meta.source.name} (${short(meta.tokens)} tokens), replayed through the ` +
    `manager ${data.runs.length === 1 ? 'once' : data.runs.length + ' times'}. ` +
    (turned ? 'Once the pool has turned over' : 'The pool was never filled once; at the end') +
    `, the mean run at page size ${sizes[0]} is ${short(worst.steady.run_mean)} slots with ${worst.policy}` +
    (best === worst ? '' : ` and ${short(best.steady.run_mean)} with ${best.policy}`) +
    `; ${short(best.oracle.run_mean)} would be possible.`;
  if (sizes.length > 1) {
    for (const size of sizes) {
      const button = node(el('tabs'), 'button', '', 'page size ' + size);
      button.dataset.size = size;
      button.addEventListener('click', () => show(size));
    }
  }
  const scaleLegend = el('legend-map');
  const swatch = (css, text) => {
    const item = node(scaleLegend, 'span');
    node(item, 'i').style.background = css;
    item.appendChild(document.createTextNode(text));
  };
  swatch('var(--free)', 'free');
  for (const [k, text] of [[0, '1 slot'], [2, '4'], [4, '16'], [6, '64'], [8, '256'], [10, '1,024 and more']]) {
    swatch('rgb(' + classColour(k) + ')', text);
  }
  const rows = Object.entries(meta.arguments).map(([k, v]) => [k, v]);
  rows.push(['seed', String(meta.seed)], ['source', meta.source.name], ['sha256', meta.source.sha256 || 'n/a'],
    ['rows read', String(meta.rows.read)], ['rows emitted', String(meta.rows.emitted)],
    ['rows dropped', Object.entries(meta.rows.dropped || {}).map(([k, v]) => `${k}: ${v}`).join(', ') || '0'],
    ['version', meta.version]);
  table(el('arguments'), ['name', 'value'], rows);
  show(sizes[0]);
})();

//! The pass over the layers.

use lily_model::{Attention, DeltaNet, Mixer, Mlp};

use crate::attention::{Attend, AttendSpan, MergeSpans, Partial, PrepareRow, QUERY_TOKENS, Queries, SPAN};
use crate::batch::Batch;
use crate::delta_net::{CONV_CHANNELS, Convolve, Scan};
use crate::dequantize::DequantizeRows;
use crate::matmul::{Product, products};
use crate::mlp::{RoutedExperts, SharedBlock, Workers, feed_forward};
use crate::model::CpuModel;
use crate::norm::norm_rows;
use crate::panel::Inputs;
use crate::quantize::Layout;
use crate::scratch::LOGIT_ROWS;
use crate::shared::SharedMut;
use crate::simd::math::sigmoid_scalar;

/// Rows of one task of the query and key preparation.
const PREPARE_ROWS: usize = 4;

/// State of one sequence in a Gated DeltaNet layer, for tasks that each have some channels or one head.
struct StateView {
    conv: *mut f32,
    recurrent: *mut f32,
    first_row: usize,
    rows: usize,
}

// SAFETY: tasks use disjoint parts: a channel or a head of a sequence belongs to one task.
unsafe impl Sync for StateView {}

impl CpuModel {
    /// Runs all layers over the rows of `batch`: the residual stream is left in `activations.x`, the sequences' states are moved
    /// on, their positions are not.
    pub(crate) fn run_layers(&mut self, batch: &mut Batch<'_, '_>) {
        let weights = std::sync::Arc::clone(&self.weights);
        let config = std::sync::Arc::clone(&self.config);
        let (rows, hidden) = (batch.rows(), config.hidden_size);
        self.recorder.layer(None);
        self.recorder.skip();
        for row in 0..rows {
            self.activations.rotary.set(row, batch.position(row));
            self.set.run(DequantizeRows {
                matrix: &weights.embedding,
                index: 0,
                first_row: batch.token(row) as usize,
                rows: 1,
                out: &mut self.activations.x[row * hidden..(row + 1) * hidden],
            });
        }
        self.recorder.end("embedding");
        for (index, layer) in weights.layers.iter().enumerate() {
            self.recorder.layer(Some(index));
            self.norm_input(rows, &layer.input_norm);
            self.recorder.end("norm");
            match &layer.mixer {
                Mixer::Attention(attention) => self.run_attention(batch, index, attention),
                Mixer::DeltaNet(delta_net) => self.run_delta_net(batch, index, delta_net),
            }
            self.norm_input(rows, &layer.post_norm);
            self.recorder.end("mlp norm");
            self.run_mlp(rows, &layer.mlp);
        }
        self.recorder.layer(None);
    }

    /// Logits of `count` rows from `first` on, handed over in order.
    pub(crate) fn compute_logits(&mut self, first: usize, count: usize, mut receive: impl FnMut(usize, &[f32])) {
        let (hidden, vocab_size) = (self.config.hidden_size, self.config.vocab_size);
        for start in (first..first + count).step_by(LOGIT_ROWS) {
            let rows = LOGIT_ROWS.min(first + count - start);
            let activations = &mut self.activations;
            let normed = &mut activations.normed[..rows * hidden];
            norm_rows(
                &mut self.pool,
                self.set,
                &activations.x[start * hidden..(start + rows) * hidden],
                &self.weights.norm,
                self.config.rms_norm_eps,
                normed,
            );
            if let Some(quantized) = &mut activations.quantized {
                quantized.normed.fill(
                    &mut self.pool,
                    self.set,
                    Layout::for_rows(self.set, rows),
                    normed,
                    hidden,
                );
            }
            self.recorder.end("norm");
            let quantized = activations.quantized.as_ref().map(|quantized| &quantized.normed);
            let logits = &mut activations.logits[..rows * vocab_size];
            let product = Product {
                matrix: self.weights.output(),
                inputs: Inputs::first(rows, normed, hidden, quantized),
                out: SharedMut::new(logits),
                add: false,
            };
            products(&mut self.pool, self.set, SharedMut::new(&mut self.threads), &[product]);
            for (row, logits) in activations.logits.chunks_exact(vocab_size).take(rows).enumerate() {
                receive(start + row, logits);
            }
            self.recorder.end("logits");
        }
    }

    fn norm_input(&mut self, rows: usize, weight: &[f32]) {
        let used = rows * self.config.hidden_size;
        norm_rows(
            &mut self.pool,
            self.set,
            &self.activations.x[..used],
            weight,
            self.config.rms_norm_eps,
            &mut self.activations.normed[..used],
        );
        if let Some(quantized) = &mut self.activations.quantized {
            let normed = &self.activations.normed[..used];
            quantized.normed.fill(
                &mut self.pool,
                self.set,
                Layout::for_rows(self.set, rows),
                normed,
                weight.len(),
            );
        }
    }

    fn run_delta_net(&mut self, batch: &mut Batch<'_, '_>, layer: usize, weights: &DeltaNet) {
        let rows = batch.rows();
        let (set, config) = (self.set, &self.config.delta_net);
        let (channels, values) = (config.conv_channels(), config.value_heads * config.value_dim);
        let hidden = self.config.hidden_size;
        let activations = &mut self.activations;
        let quantized = activations.quantized.as_ref().map(|quantized| &quantized.normed);
        let normed = Inputs::first(rows, &activations.normed, hidden, quantized);
        let project = |matrix, out| Product {
            matrix,
            inputs: normed,
            out: SharedMut::new(out),
            add: false,
        };
        products(
            &mut self.pool,
            set,
            SharedMut::new(&mut self.threads),
            &[
                project(&weights.in_proj_qkv, &mut activations.queries[..rows * channels]),
                project(&weights.in_proj_z, &mut activations.z[..rows * values]),
                project(&weights.in_proj_b, &mut activations.b[..rows * config.value_heads]),
                project(&weights.in_proj_a, &mut activations.a[..rows * config.value_heads]),
            ],
        );
        self.recorder.end("projections");

        let mut views = Vec::with_capacity(batch.segments());
        for segment in 0..batch.segments() {
            let rows = batch.segment_rows(segment);
            let state = batch.delta_net_mut(segment, layer);
            views.push(StateView {
                conv: state.conv.as_mut_ptr(),
                recurrent: state.recurrent.as_mut_ptr(),
                first_row: rows.start,
                rows: rows.len(),
            });
        }
        let views = &views;
        let blocks = channels.div_ceil(CONV_CHANNELS);
        let qkv = SharedMut::new(&mut activations.queries[..rows * channels]);
        let taps = &self.conv_taps[layer];
        self.pool.run(views.len() * blocks, &|task, _| {
            let view = &views[task / blocks];
            let first_channel = task % blocks * CONV_CHANNELS;
            // SAFETY: `Convolve` touches this task's channels only.
            let rows = unsafe { qkv.part(view.first_row * channels, view.rows * channels) };
            set.run(Convolve {
                taps,
                state: view.conv,
                rows: rows.as_mut_ptr(),
                row_count: view.rows,
                channels,
                first_channel,
                channel_count: CONV_CHANNELS.min(channels - first_channel),
                kernel: config.conv_kernel,
            });
        });
        self.recorder.end("convolution");

        let (qkv, mixed) = (
            &activations.queries,
            SharedMut::new(&mut activations.mixed[..rows * values]),
        );
        let threads = SharedMut::new(&mut self.threads);
        let (head_state, heads) = (config.value_dim * config.key_dim, config.value_heads);
        let (a, b, z) = (&activations.a, &activations.b, &activations.z);
        let eps = self.config.rms_norm_eps;
        self.pool.run(views.len() * heads, &|task, thread| {
            let (view, head) = (&views[task / heads], task % heads);
            let part = |cols: usize| view.first_row * cols..(view.first_row + view.rows) * cols;
            set.run(Scan {
                config,
                head,
                qkv: &qkv[part(channels)],
                z: &z[part(values)],
                b: &b[part(heads)],
                a: &a[part(heads)],
                a_log: weights.a_log[head],
                dt_bias: weights.dt_bias[head],
                norm: &weights.norm,
                eps,
                // SAFETY: the state has `heads` parts of this size, and this task alone has this head of this sequence.
                state: unsafe { std::slice::from_raw_parts_mut(view.recurrent.add(head * head_state), head_state) },
                out: mixed,
                first_row: view.first_row,
                // SAFETY: the pool gives a thread number to one task at a time.
                scratch: unsafe { &mut threads.item(thread).scan },
            });
        });
        self.recorder.end("recurrence");
        self.project_mixed(rows, values, &weights.out_proj);
    }

    /// `x += matrix * mixed`
    fn project_mixed(&mut self, rows: usize, cols: usize, matrix: &lily_model::Matrix) {
        let activations = &mut self.activations;
        if let Some(quantized) = &mut activations.quantized {
            let mixed = &activations.mixed[..rows * cols];
            quantized
                .mixed
                .fill(&mut self.pool, self.set, Layout::for_rows(self.set, rows), mixed, cols);
        }
        let quantized = activations.quantized.as_ref().map(|quantized| &quantized.mixed);
        let product = Product {
            matrix,
            inputs: Inputs::first(rows, &activations.mixed, cols, quantized),
            out: SharedMut::new(&mut activations.x[..rows * self.config.hidden_size]),
            add: true,
        };
        products(&mut self.pool, self.set, SharedMut::new(&mut self.threads), &[product]);
        self.recorder.end("output");
    }

    fn run_attention(&mut self, batch: &mut Batch<'_, '_>, layer: usize, weights: &Attention) {
        let rows = batch.rows();
        let (set, config) = (self.set, &self.config.attention);
        let (heads, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let (hidden, eps) = (self.config.hidden_size, self.config.rms_norm_eps);
        let activations = &mut self.activations;
        let quantized = activations.quantized.as_ref().map(|quantized| &quantized.normed);
        let normed = Inputs::first(rows, &activations.normed, hidden, quantized);
        let project = |matrix, out| Product {
            matrix,
            inputs: normed,
            out: SharedMut::new(out),
            add: false,
        };
        products(
            &mut self.pool,
            set,
            SharedMut::new(&mut self.threads),
            &[
                project(&weights.q_proj, &mut activations.queries[..rows * 2 * heads]),
                project(&weights.k_proj, &mut activations.keys[..rows * kv]),
                project(&weights.v_proj, &mut activations.values[..rows * kv]),
            ],
        );
        self.recorder.end("projections");

        let queries = SharedMut::new(&mut activations.queries[..rows * 2 * heads]);
        let keys = SharedMut::new(&mut activations.keys[..rows * kv]);
        let rotary = &activations.rotary;
        self.pool.run(rows.div_ceil(PREPARE_ROWS), &|task, _| {
            for row in task * PREPARE_ROWS..rows.min((task + 1) * PREPARE_ROWS) {
                set.run(PrepareRow {
                    config,
                    // SAFETY: each row belongs to one task.
                    queries: unsafe { queries.part(row * 2 * heads, 2 * heads) },
                    // SAFETY: as above.
                    keys: unsafe { keys.part(row * kv, kv) },
                    q_norm: &weights.q_norm,
                    k_norm: &weights.k_norm,
                    eps,
                    rotary,
                    row,
                });
            }
        });
        for segment in 0..batch.segments() {
            let rows = batch.segment_rows(segment);
            let position = batch.position(rows.start);
            let rows = rows.start * kv..rows.end * kv;
            batch.cache_mut(segment, layer).write(
                set,
                position,
                &activations.keys[rows.clone()],
                &activations.values[rows],
            );
        }
        self.recorder.end("q and k");
        match batch {
            Batch::Prefill { .. } => self.attend_chunk(batch, layer),
            Batch::Decode(_) => self.attend_tokens(batch, layer),
        }
        self.recorder.end("attention");
        self.project_mixed(rows, heads, &weights.o_proj);
    }

    /// Attention of a chunk of one sequence: a task has some query rows of one KV head.
    fn attend_chunk(&mut self, batch: &Batch<'_, '_>, layer: usize) {
        let (set, config, rows) = (self.set, &self.config.attention, batch.rows());
        let heads = config.heads * config.head_dim;
        let activations = &mut self.activations;
        let queries = &activations.queries;
        let out = SharedMut::new(&mut activations.mixed[..rows * heads]);
        let threads = SharedMut::new(&mut self.threads);
        let tiles = rows.div_ceil(QUERY_TOKENS);
        let blocks = batch.cache(0, layer).blocks();
        self.pool.run(tiles * config.kv_heads, &|task, thread| {
            // The last rows look at the most keys: they go first, so that no thread is left with a long task at the end.
            let first_row = (tiles - 1 - task / config.kv_heads) * QUERY_TOKENS;
            let end = rows.min(first_row + QUERY_TOKENS);
            set.run(Attend {
                queries: Queries {
                    config,
                    queries: &queries[first_row * 2 * heads..end * 2 * heads],
                    position: batch.position(first_row),
                    kv_head: task % config.kv_heads,
                },
                blocks,
                out,
                first_row,
                // SAFETY: the pool gives a thread number to one task at a time.
                scratch: unsafe { &mut threads.item(thread).attention },
            });
        });
    }

    /// Attention of one token of each sequence: a task has one span of one KV head.
    fn attend_tokens(&mut self, batch: &Batch<'_, '_>, layer: usize) {
        let (set, config, rows) = (self.set, &self.config.attention, batch.rows());
        let heads = config.heads * config.head_dim;
        let activations = &mut self.activations;
        let queries = &activations.queries;
        let out = SharedMut::new(&mut activations.mixed[..rows * heads]);
        let threads = SharedMut::new(&mut self.threads);
        let query = |row: usize, kv_head| Queries {
            config,
            queries: &queries[row * 2 * heads..(row + 1) * 2 * heads],
            position: batch.position(row),
            kv_head,
        };
        // Tasks are numbered row by row, KV head by KV head, span by span.
        let spans = |row: usize| batch.position(row) / SPAN + 1;
        let tasks = (0..rows).map(|row| config.kv_heads * spans(row)).sum();
        while self.partials.len() < tasks {
            self.partials
                .push(Partial::new(config.heads / config.kv_heads, config.head_dim));
        }
        let partials = SharedMut::new(&mut self.partials);
        self.pool.run(tasks, &|task, thread| {
            let mut index = task;
            for row in 0..rows {
                let (spans, row_tasks) = (spans(row), config.kv_heads * spans(row));
                if index < row_tasks {
                    let (blocks, span) = (batch.cache(row, layer).blocks(), index % spans);
                    set.run(AttendSpan {
                        queries: query(row, index / spans),
                        block: &blocks[span],
                        next: blocks.get(span + 1).map(|next| &**next),
                        span,
                        // SAFETY: each partial belongs to one task.
                        partial: unsafe { partials.item(task) },
                        // SAFETY: the pool gives a thread number to one task at a time.
                        scratch: unsafe { &mut threads.item(thread).attention },
                    });
                    return;
                }
                index -= row_tasks;
            }
        });
        let partials = &self.partials;
        let first_span = |row: usize| (0..row).map(|row| config.kv_heads * spans(row)).sum::<usize>();
        self.pool.run(rows * config.kv_heads, &|task, thread| {
            let (row, kv_head) = (task / config.kv_heads, task % config.kv_heads);
            let first = first_span(row) + kv_head * spans(row);
            set.run(MergeSpans {
                queries: query(row, kv_head),
                partials: &partials[first..first + spans(row)],
                out,
                first_row: row,
                // SAFETY: the pool gives a thread number to one task at a time.
                scratch: unsafe { &mut threads.item(thread).attention },
            });
        });
    }

    fn run_mlp(&mut self, rows: usize, mlp: &Mlp) {
        let hidden = self.config.hidden_size;
        let activations = &mut self.activations;
        let (normed, hidden_quantized, shared_quantized, gathered) = match &mut activations.quantized {
            Some(quantized) => (
                Some(&quantized.normed),
                Some(&mut quantized.hidden),
                Some(&mut quantized.shared_hidden),
                quantized.gathered.as_mut(),
            ),
            None => (None, None, None, None),
        };
        let inputs = Inputs::first(rows, &activations.normed, hidden, normed);
        let (routed, shared) = match mlp {
            Mlp::Moe(moe) => {
                // In f32: a small change of the router's logits may choose another expert.
                let project = |matrix, out| Product {
                    matrix,
                    inputs: Inputs {
                        quantized: None,
                        ..inputs
                    },
                    out: SharedMut::new(out),
                    add: false,
                };
                products(
                    &mut self.pool,
                    self.set,
                    SharedMut::new(&mut self.threads),
                    &[
                        project(&moe.router, &mut activations.router[..rows * moe.router.rows]),
                        project(&moe.shared_gate, &mut activations.shared_gates[..rows]),
                    ],
                );
                activations.shared_gates[..rows]
                    .iter_mut()
                    .for_each(|gate| *gate = sigmoid_scalar(*gate));
                activations.routing.route(&activations.router[..rows * moe.router.rows]);
                self.recorder.end("router");
                let routed = RoutedExperts {
                    mlp: &moe.experts,
                    routing: &activations.routing,
                    hidden: &mut activations.hidden,
                    quantized: hidden_quantized,
                    gathered,
                };
                (Some(routed), &moe.shared)
            }
            Mlp::Dense(dense) => {
                activations.shared_gates[..rows].fill(1.0);
                (None, &**dense)
            }
        };
        feed_forward(
            Workers {
                pool: &mut self.pool,
                set: self.set,
                threads: SharedMut::new(&mut self.threads),
                recorder: &mut self.recorder,
            },
            inputs,
            routed,
            SharedBlock {
                mlp: shared,
                gates: &activations.shared_gates,
                hidden: &mut activations.shared_hidden,
                quantized: shared_quantized,
            },
            &mut activations.x[..rows * hidden],
        );
    }
}

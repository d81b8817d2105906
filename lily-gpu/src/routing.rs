//! The host's choice and sorting of experts, where `gpu-routing` is off.

use lily_model::ModelConfig;

use crate::device::{Device, Slice};
use crate::error::GpuError;
use crate::graph::scratch::{MlpShape, Scratch};

/// Routes one layer's chunk: reads the router's logits, writes what moe_route, moe_offsets and moe_scatter would have written.
pub(crate) struct HostRouting<'a> {
    pub config: &'a ModelConfig,
    pub scratch: &'a Scratch,
    pub rows: usize,
    pub tile_rows: usize,
}

impl HostRouting<'_> {
    pub fn run(&self, device: &mut impl Device) -> Result<(), GpuError> {
        let (mlp, s) = (MlpShape::of(self.config), self.scratch);
        let mut bytes = vec![0; self.rows * mlp.experts * 4];
        device.read(s.router_logits.part(0, bytes.len()), &mut bytes)?;
        let logits: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();

        let mut experts = Vec::with_capacity(self.rows * mlp.top_k);
        let mut chosen_logits = Vec::with_capacity(self.rows * mlp.top_k);
        for row in logits.chunks_exact(mlp.experts) {
            let mut order: Vec<u32> = (0..mlp.experts as u32).collect();
            order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
            for &expert in &order[..mlp.top_k] {
                experts.push(expert);
                chosen_logits.push(row[expert as usize].to_bits());
            }
        }
        let mut sorted: Vec<u32> = (0..experts.len() as u32).collect();
        sorted.sort_by_key(|&entry| experts[entry as usize]);
        let mut blocks = Vec::new();
        let mut first = 0;
        while first < sorted.len() {
            let expert = experts[sorted[first] as usize];
            let same = sorted[first..]
                .iter()
                .take_while(|&&entry| experts[entry as usize] == expert)
                .count();
            let rows = same.min(self.tile_rows);
            blocks.extend([expert, first as u32, rows as u32]);
            first += rows;
        }
        let count = [blocks.len() as u32 / 3];
        let mut write = |to: Slice, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            device.write(to, &bytes)
        };
        write(s.route_experts, &experts)?;
        write(s.route_logits, &chosen_logits)?;
        write(s.sorted, &sorted)?;
        write(s.blocks, &blocks)?;
        write(s.block_count, &count)
    }
}

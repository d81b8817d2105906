//! A recorded pass: dispatches with declared reads and writes, from which the order that must be kept is computed.
//!
//! A dispatch depends on an earlier one where they touch the same bytes and one of them writes. From that follow, for a Metal encoder,
//! stages (dispatches of one stage run together, a barrier stands between stages), and for a CUDA graph, edges.

mod edges;
mod hazards;

use crate::device::Slice;
use crate::params::Params;

/// How a dispatch uses a range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Only writes, or writes everything that it later reads.
    Write,
    /// Reads and writes.
    ReadWrite,
}

/// What a kernel gets in a binding slot.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A range of a buffer.
    Buffer(Slice, Access),
    /// Parameters, copied into the pass.
    Bytes(Vec<u8>),
    /// Nothing: the kernel does not touch this slot, but something must be bound.
    Unused,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// Name of the kernel, as in `[[host_name]]`.
    pub kernel: String,
    /// Function constants, `(index, value)`.
    pub constants: Vec<(u32, bool)>,
    /// Argument `i` is bound to slot `i`.
    pub arguments: Vec<Argument>,
    /// Threadgroups of the grid.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: [u32; 3],
    /// Bytes of the kernel's `[[threadgroup(0)]]` argument; 0 where it has none.
    pub threadgroup_bytes: u32,
    /// What it computes, for people: `layer 3 attention`.
    pub label: String,
}

impl Dispatch {
    /// A dispatch of `kernel`; arguments follow in the order of their slots.
    pub fn new(kernel: impl Into<String>, label: impl Into<String>) -> Dispatch {
        Dispatch {
            kernel: kernel.into(),
            constants: Vec::new(),
            arguments: Vec::new(),
            threadgroups: [1; 3],
            threads: [32, 1, 1],
            threadgroup_bytes: 0,
            label: label.into(),
        }
    }

    /// Sets function constant `index`.
    pub fn constant(mut self, index: u32, value: bool) -> Dispatch {
        self.constants.push((index, value));
        self
    }

    /// Binds a range that is only read.
    pub fn read(mut self, slice: Slice) -> Dispatch {
        self.arguments.push(Argument::Buffer(slice, Access::Read));
        self
    }

    /// Binds a range that is written.
    pub fn write(mut self, slice: Slice) -> Dispatch {
        self.arguments.push(Argument::Buffer(slice, Access::Write));
        self
    }

    /// Binds a range that is read and written.
    pub fn update(mut self, slice: Slice) -> Dispatch {
        self.arguments.push(Argument::Buffer(slice, Access::ReadWrite));
        self
    }

    /// Leaves a slot unused.
    pub fn unused(mut self) -> Dispatch {
        self.arguments.push(Argument::Unused);
        self
    }

    /// Binds parameters.
    pub fn params(mut self, params: &impl Params) -> Dispatch {
        self.arguments.push(Argument::Bytes(params.bytes()));
        self
    }

    /// Sets the grid.
    pub fn grid(mut self, x: usize, y: usize, z: usize) -> Dispatch {
        self.threadgroups = [x as u32, y as u32, z as u32];
        self
    }

    /// Sets the threads of a threadgroup.
    pub fn threads(mut self, threads: usize) -> Dispatch {
        self.threads = [threads as u32, 1, 1];
        self
    }

    /// Sets the bytes of the kernel's `[[threadgroup(0)]]` argument.
    pub fn threadgroup_memory(mut self, bytes: usize) -> Dispatch {
        self.threadgroup_bytes = bytes as u32;
        self
    }

    fn accesses(&self) -> impl Iterator<Item = (Slice, Access)> + '_ {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Buffer(slice, access) => Some((*slice, *access)),
            _ => None,
        })
    }
}

/// Dispatches in an order that respects every dependency.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    dispatches: Vec<Dispatch>,
    dependencies: Vec<Vec<usize>>,
    stages: Vec<u32>,
    tracker: hazards::Tracker,
    everything_in_order: bool,
}

impl Pass {
    /// An empty pass. With `everything_in_order` every dispatch waits for the one before, whether data flows or not.
    pub fn new(everything_in_order: bool) -> Pass {
        Pass {
            everything_in_order,
            ..Pass::default()
        }
    }

    /// Appends a dispatch; it sees what the earlier ones wrote. One with an empty grid is left out.
    pub fn push(&mut self, dispatch: Dispatch) {
        if dispatch.threadgroups.contains(&0) {
            return;
        }
        let index = self.dispatches.len();
        let mut dependencies = Vec::new();
        for (slice, access) in dispatch.accesses() {
            self.tracker.conflicts(slice, access, &mut dependencies);
        }
        for (slice, access) in dispatch.accesses() {
            self.tracker.record(slice, access, index);
        }
        if self.everything_in_order && index > 0 {
            dependencies.push(index - 1);
        }
        dependencies.sort_unstable();
        dependencies.dedup();
        self.stages.push(
            dependencies
                .iter()
                .map(|&earlier| self.stages[earlier] + 1)
                .max()
                .unwrap_or(0),
        );
        self.dependencies.push(dependencies);
        self.dispatches.push(dispatch);
    }

    /// The dispatches, in the order in which they were pushed.
    pub fn dispatches(&self) -> &[Dispatch] {
        &self.dispatches
    }

    /// The earlier dispatches that dispatch `index` must wait for.
    pub fn dependencies(&self, index: usize) -> &[usize] {
        &self.dependencies[index]
    }

    /// The dependency stage of dispatch `index`.
    pub fn stage(&self, index: usize) -> usize {
        self.stages[index] as usize
    }

    /// Dependency stages.
    pub fn stage_count(&self) -> usize {
        self.stages.iter().max().map_or(0, |&last| last as usize + 1)
    }

    /// Dispatch indices by stage; no dispatch depends on another of its stage, and each only on earlier stages.
    pub fn by_stage(&self) -> Vec<Vec<usize>> {
        let mut stages = vec![Vec::new(); self.stage_count()];
        for (index, &stage) in self.stages.iter().enumerate() {
            stages[stage as usize].push(index);
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::BufferId;

    fn slice(buffer: u32, offset: usize, len: usize) -> Slice {
        Slice {
            buffer: BufferId(buffer),
            offset,
            len,
        }
    }

    fn step(reads: &[Slice], writes: &[Slice]) -> Dispatch {
        let dispatch = reads.iter().fold(Dispatch::new("k", "k"), |d, &s| d.read(s));
        writes.iter().fold(dispatch, |d, &s| d.write(s))
    }

    #[test]
    fn only_data_flow_makes_stages() {
        let (a, b, c, d) = (slice(0, 0, 64), slice(1, 0, 64), slice(2, 0, 64), slice(3, 0, 64));
        let mut pass = Pass::new(false);
        pass.push(step(&[a], &[b])); // 0
        pass.push(step(&[a], &[c])); // 1: shares only a read
        pass.push(step(&[b, c], &[d])); // 2: reads both
        pass.push(step(&[a], &[b])); // 3: overwrites what 0 wrote and 2 read
        assert_eq!(pass.by_stage(), [vec![0, 1], vec![2], vec![3]]);
        assert_eq!(pass.dependencies(2), [0, 1]);
        assert_eq!(pass.dependencies(3), [0, 2]);
    }

    #[test]
    fn disjoint_ranges_of_a_buffer_are_independent() {
        let mut pass = Pass::new(false);
        pass.push(step(&[], &[slice(0, 0, 64)]));
        pass.push(step(&[], &[slice(0, 64, 64)]));
        pass.push(step(&[slice(0, 32, 64)], &[]));
        assert_eq!(pass.by_stage(), [vec![0, 1], vec![2]]);
        assert_eq!(pass.dependencies(2), [0, 1]);
    }

    #[test]
    fn a_partial_overwrite_keeps_the_rest_of_the_earlier_write() {
        let mut pass = Pass::new(false);
        pass.push(step(&[], &[slice(0, 0, 128)])); // 0
        pass.push(step(&[], &[slice(0, 0, 64)])); // 1
        pass.push(step(&[slice(0, 96, 16)], &[])); // 2: still from 0
        assert_eq!(pass.dependencies(1), [0]);
        assert_eq!(pass.dependencies(2), [0]);
    }

    #[test]
    fn an_empty_grid_is_left_out_and_order_can_be_forced() {
        let mut pass = Pass::new(true);
        pass.push(step(&[], &[slice(0, 0, 4)]));
        pass.push(step(&[], &[slice(1, 0, 4)]).grid(0, 1, 1));
        pass.push(step(&[], &[slice(2, 0, 4)]));
        assert_eq!(pass.dispatches().len(), 2);
        assert_eq!(pass.stage_count(), 2);
    }
}

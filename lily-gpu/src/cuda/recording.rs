//! Passes as graphs.

use std::sync::Arc;

use super::driver::{Graph, GraphBuilder, Grid, Parameters, Stream, launch};
use super::kernels::Pipeline;
use crate::error::GpuError;
use crate::pass::{Argument, Dispatch};

/// The most threadgroups of a grid in x, and in y and z.
const MOST_THREADGROUPS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// A kernel and all that it is launched with.
pub struct Launch {
    /// The kernel.
    pub pipeline: Arc<Pipeline>,
    /// Its grid.
    pub grid: Grid,
    /// Its arguments.
    pub parameters: Parameters,
    /// What it computes, for people.
    pub label: String,
    /// The kernel's name.
    pub kernel: String,
}

impl Launch {
    /// The launch of a dispatch; `address` finds slices, and `unused` is where slots without a buffer point to.
    pub fn new(
        dispatch: &Dispatch,
        pipeline: Arc<Pipeline>,
        address: &dyn Fn(&crate::device::Slice) -> Result<u64, GpuError>,
        unused: &dyn Fn(usize) -> u64,
    ) -> Result<Launch, GpuError> {
        let invalid = |what: String| GpuError::Device(format!("{} ({}): {what}", dispatch.label, dispatch.kernel));
        let mut parameters = Parameters::default();
        for parameter in &pipeline.parameters {
            let slot = parameter.slot as usize;
            let argument = dispatch.arguments.get(slot);
            match (argument, parameter.bytes) {
                (Some(Argument::Buffer(slice, _)), None) => parameters.address(address(slice)?),
                (Some(Argument::Unused), None) => parameters.address(unused(slot)),
                (Some(Argument::Bytes(bytes)), Some(expected)) if bytes.len() == expected => parameters.bytes(bytes),
                (Some(Argument::Bytes(bytes)), Some(expected)) => {
                    return Err(invalid(format!(
                        "slot {slot} takes {expected} bytes of parameters, found {}",
                        bytes.len()
                    )));
                }
                (Some(Argument::Bytes(_)), None) => {
                    return Err(invalid(format!("slot {slot} takes a buffer, found parameters")));
                }
                (Some(_), Some(_)) => return Err(invalid(format!("slot {slot} takes parameters, found a buffer"))),
                (None, _) => return Err(invalid(format!("slot {slot} has no argument"))),
            }
        }
        let threads: u32 = dispatch.threads.iter().product();
        if threads > pipeline.function.max_threads {
            let most = pipeline.function.max_threads;
            return Err(invalid(format!("{threads} threads, but {most} are the most")));
        }
        if dispatch
            .threadgroups
            .iter()
            .zip(MOST_THREADGROUPS)
            .any(|(&count, most)| count > most)
        {
            return Err(invalid(format!(
                "a grid of {:?} threadgroups is too large",
                dispatch.threadgroups
            )));
        }
        if dispatch.threadgroup_bytes > 0 {
            pipeline.function.allow_threadgroup_bytes(dispatch.threadgroup_bytes)?;
        }
        Ok(Launch {
            pipeline,
            grid: Grid {
                threadgroups: dispatch.threadgroups,
                threads: dispatch.threads,
                threadgroup_bytes: dispatch.threadgroup_bytes,
            },
            parameters,
            label: dispatch.label.clone(),
            kernel: dispatch.kernel.clone(),
        })
    }
}

impl Launch {
    /// Runs it after the work that is queued.
    pub fn run(&mut self, stream: &Stream) -> Result<(), GpuError> {
        let function = &self.pipeline.function;
        launch(stream, function, self.grid, &mut self.parameters)
            .map_err(|error| GpuError::Device(format!("{} ({}): {error}", self.label, self.kernel)))
    }
}

/// A pass, ready to run.
pub enum Recording {
    /// All at once.
    Graph {
        /// What runs.
        graph: Graph,
        /// Its kernels, which must outlive it.
        _pipelines: Vec<Arc<Pipeline>>,
    },
    /// Launch by launch, to see where time goes.
    Traced(Vec<Launch>),
}

impl Recording {
    /// A graph of these launches.
    pub fn graph(mut launches: Vec<Launch>, edges: &[(usize, usize)], early: bool) -> Result<Recording, GpuError> {
        let mut builder = GraphBuilder::new()?;
        for launch in &mut launches {
            let named = |error| GpuError::Device(format!("{} ({}): {error}", launch.label, launch.kernel));
            builder
                .kernel(&launch.pipeline.function, launch.grid, &mut launch.parameters)
                .map_err(named)?;
        }
        Ok(Recording::Graph {
            graph: builder.finish(edges, early)?,
            _pipelines: launches.into_iter().map(|launch| launch.pipeline).collect(),
        })
    }
}

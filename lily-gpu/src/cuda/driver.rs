//! The part of NVIDIA's driver API that the device uses. The driver's library is loaded when a GPU is first asked for; nothing of it is
//! needed to build Lily.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use cudarc::driver::DriverError;
use cudarc::driver::sys;

use crate::error::GpuError;
use crate::policy::Family;

/// The oldest CUDA version that a driver may support: graph edges with a type (driver 545).
const OLDEST_CUDA: c_int = 12030;
/// The oldest GPU: asynchronous copies, bf16 matrix instructions (Ampere).
const OLDEST_CAPABILITY: (c_int, c_int) = (8, 0);
/// Bytes that the compiler of the driver may use to say what is wrong.
const LOG_BYTES: usize = 16 << 10;

/// Turns a result of the driver into ours.
fn check(code: sys::CUresult, what: &str) -> Result<(), GpuError> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let error = DriverError(code);
    let text = |found: Result<&CStr, DriverError>| found.map(|text| text.to_string_lossy().into_owned());
    let name = text(error.error_name()).unwrap_or_else(|_| format!("error {}", code as u32));
    let meaning = text(error.error_string()).unwrap_or_default();
    Err(GpuError::Device(format!("CUDA: {what}: {name} ({meaning})")))
}

/// Why there is no GPU to open.
pub enum Absent {
    /// No driver, or no GPU: an ordinary machine.
    Nothing(String),
    /// There is one, but it cannot be used.
    Unusable(String),
}

/// A GPU and its context.
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pool: sys::CUmemoryPool,
    /// As the driver calls it: `NVIDIA H200`.
    pub name: String,
    /// Compute capability: 9.0 for Hopper.
    pub capability: (c_int, c_int),
    /// What the policy chooses by.
    pub family: Family,
    /// Bytes of memory.
    pub memory: usize,
    /// The CUDA version that the driver supports: 12030 for 12.3.
    pub driver: c_int,
}

// SAFETY: the driver's calls may come from any thread; every method makes the context current on its thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the methods on `&self` that several threads call at once (module loading) are safe to call so.
unsafe impl Sync for Gpu {}

fn absent(error: GpuError) -> Absent {
    Absent::Unusable(error.to_string())
}

impl Gpu {
    /// The first GPU that the driver shows.
    pub fn open() -> Result<Gpu, Absent> {
        // SAFETY: only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(Absent::Nothing(
                "no NVIDIA driver is installed (libcuda cannot be loaded). Lily needs the driver alone, no CUDA toolkit: \
                 install it from your distribution (`nvidia-driver`) or from nvidia.com/drivers"
                    .into(),
            ));
        }
        let mut driver = 0;
        // SAFETY: writes a number.
        let code = unsafe { sys::cuDriverGetVersion(&raw mut driver) };
        check(code, "asking for the driver's version").map_err(absent)?;
        if driver < OLDEST_CUDA {
            return Err(Absent::Unusable(format!(
                "the NVIDIA driver supports CUDA {}, but Lily needs {} (driver 545) or newer: update the driver",
                version(driver),
                version(OLDEST_CUDA)
            )));
        }
        // SAFETY: takes flags, which must be 0.
        let code = unsafe { sys::cuInit(0) };
        if code == sys::CUresult::CUDA_ERROR_NO_DEVICE {
            return Err(Absent::Nothing(
                "the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty, or the container started without GPUs?)".into(),
            ));
        }
        check(code, "starting the driver").map_err(absent)?;
        Self::first(driver).map_err(absent).and_then(|gpu| {
            let (major, minor) = gpu.capability;
            if gpu.capability >= OLDEST_CAPABILITY {
                return Ok(gpu);
            }
            let (least_major, least_minor) = OLDEST_CAPABILITY;
            Err(Absent::Unusable(format!(
                "{} has compute capability {major}.{minor}, but Lily's kernels need {least_major}.{least_minor} (Ampere) or newer",
                gpu.name
            )))
        })
    }

    fn first(driver: c_int) -> Result<Gpu, GpuError> {
        let mut device = 0;
        // SAFETY: writes a handle.
        check(unsafe { sys::cuDeviceGet(&raw mut device, 0) }, "opening the first GPU")?;
        let mut name = [0; 256];
        // SAFETY: writes at most 256 bytes, with a zero at the end.
        let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 256, device) };
        check(code, "asking for the GPU's name")?;
        let bytes = name.map(|byte| byte.cast_unsigned());
        let name = CStr::from_bytes_until_nul(&bytes)
            .map_or_else(|_| "GPU".into(), |name| name.to_string_lossy().into_owned());
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes a number.
            let code = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
            check(code, "asking what the GPU is").map(|()| value)
        };
        use sys::CUdevice_attribute as Attribute;
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let family = Family::Nvidia {
            processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs(),
            threadgroup_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                .unsigned_abs(),
            warpgroups: capability == (9, 0),
        };
        let mut memory = 0;
        // SAFETY: writes a number.
        let code = unsafe { sys::cuDeviceTotalMem_v2(&raw mut memory, device) };
        check(code, "asking for the GPU's memory")?;
        let mut context = ptr::null_mut();
        // SAFETY: writes a handle; released when the Gpu is dropped.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        check(code, "making a context")?;
        let mut gpu = Gpu {
            device,
            context,
            pool: ptr::null_mut(),
            name,
            capability,
            family,
            memory,
            driver,
        };
        // SAFETY: writes a handle of a pool that belongs to the device.
        let code = unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut gpu.pool, device) };
        check(code, "finding the memory pool")?;
        // Freed memory stays with the process until it is given back.
        let mut everything = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: reads a u64, which this attribute is.
        let code = unsafe { sys::cuMemPoolSetAttribute(gpu.pool, threshold, (&raw mut everything).cast()) };
        check(code, "setting up the memory pool")?;
        Ok(gpu)
    }

    /// Makes the context current on this thread.
    pub fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the context lives as long as self.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "entering the context")
    }

    /// For people.
    pub fn describe(&self) -> String {
        let (major, minor) = self.capability;
        let gib = self.memory as f64 / f64::from(1 << 30);
        format!(
            "{}, {gib:.1} GiB, compute capability {major}.{minor}, CUDA {}",
            self.name,
            version(self.driver)
        )
    }

    /// Gives memory that the pool keeps back to the system.
    pub fn trim(&self) -> Result<(), GpuError> {
        // SAFETY: the pool belongs to the device.
        let code = unsafe { sys::cuMemPoolTrimTo(self.pool, 0) };
        check(code, "emptying the memory pool")
    }

    /// Bytes that are free, those that the pool keeps for us among them.
    pub fn free_memory(&self) -> Result<usize, GpuError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let code = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check(code, "asking for free memory")?;
        Ok(free + self.spare_memory()?)
    }

    /// Bytes that were freed and stay with the process.
    pub fn spare_memory(&self) -> Result<usize, GpuError> {
        let pool = |attribute| {
            let mut value = 0u64;
            // SAFETY: writes a u64, which these attributes are.
            let code = unsafe { sys::cuMemPoolGetAttribute(self.pool, attribute, (&raw mut value).cast()) };
            check(code, "asking for the pool's memory").map(|()| value)
        };
        let reserved = pool(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = pool(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(usize::try_from(reserved.saturating_sub(used)).unwrap_or(0))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: retained once in `first`. There is nobody left to tell of a failure.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

fn version(driver: c_int) -> String {
    format!("{}.{}", driver / 1000, driver % 1000 / 10)
}

/// An ordered queue of work.
pub struct Stream(sys::CUstream);

// SAFETY: a handle; the device has one owner.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the current context.
    pub fn new() -> Result<Stream, GpuError> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes a handle.
        let code = unsafe { sys::cuStreamCreate(&raw mut stream, flags) };
        check(code, "making a stream")?;
        Ok(Stream(stream))
    }

    /// Waits for all of it.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the stream exists.
        check(unsafe { sys::cuStreamSynchronize(self.0) }, "waiting for the GPU")
    }

    /// Memory whose contents are whatever was there, usable by work that is queued from now on; `None` where there is no room.
    pub fn allocate(&self, bytes: usize) -> Result<Option<u64>, GpuError> {
        let mut address = 0;
        // SAFETY: writes an address.
        let code = unsafe { sys::cuMemAllocAsync(&raw mut address, bytes, self.0) };
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Ok(None);
        }
        check(code, "allocating memory").map(|()| Some(address))
    }

    /// Gives memory back after the work that is queued.
    pub fn free(&self, address: u64) -> Result<(), GpuError> {
        // SAFETY: the caller got the address from `allocate` and forgets it.
        check(unsafe { sys::cuMemFreeAsync(address, self.0) }, "freeing memory")
    }

    /// Zeroes memory.
    pub fn clear(&self, address: u64, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller owns the range.
        let code = unsafe { sys::cuMemsetD8Async(address, 0, bytes, self.0) };
        check(code, "clearing memory")
    }

    /// Copies from pinned memory, which must stay as it is until the copy is done.
    pub fn upload(&self, to: u64, from: &[u8]) -> Result<(), GpuError> {
        // SAFETY: the caller owns the target range and keeps the source.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.0) };
        check(code, "copying to the GPU")
    }

    /// Copies to pinned memory, which must not be touched until the copy is done.
    pub fn download(&self, into: &mut [u8], from: u64) -> Result<(), GpuError> {
        // SAFETY: the caller owns the source range and keeps the target.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(into.as_mut_ptr().cast(), from, into.len(), self.0) };
        check(code, "copying from the GPU")
    }

    /// Copies inside the GPU.
    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller owns both ranges.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.0) };
        check(code, "copying on the GPU")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: not used afterwards. There is nobody left to tell of a failure.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A point in a stream.
pub struct Mark(sys::CUevent);

// SAFETY: a handle; the device has one owner.
unsafe impl Send for Mark {}

impl Mark {
    /// A mark that is not set; `timed` ones can be measured between.
    pub fn new(timed: bool) -> Result<Mark, GpuError> {
        let mut event = ptr::null_mut();
        let flags = if timed {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        // SAFETY: writes a handle.
        let code = unsafe { sys::cuEventCreate(&raw mut event, flags as u32) };
        check(code, "making an event")?;
        Ok(Mark(event))
    }

    /// Sets it after the work that is queued.
    pub fn set(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both exist.
        check(unsafe { sys::cuEventRecord(self.0, stream.0) }, "setting an event")
    }

    /// Waits until it is reached.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the event exists.
        check(unsafe { sys::cuEventSynchronize(self.0) }, "waiting for the GPU")
    }

    /// Milliseconds since another timed mark; both are reached.
    pub fn since(&self, earlier: &Mark) -> Result<f32, GpuError> {
        let mut milliseconds = 0.0;
        // SAFETY: writes a number.
        let code = unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, earlier.0, self.0) };
        check(code, "measuring time").map(|()| milliseconds)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: not used afterwards. There is nobody left to tell of a failure.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Memory of the host that the GPU reads and writes, too.
pub struct Pinned {
    start: *mut u8,
    len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Zero bytes.
    pub fn new(len: usize) -> Result<Pinned, GpuError> {
        let mut start: *mut c_void = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes an address.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut start, len, flags) };
        check(code, "allocating pinned memory")?;
        let mut pinned = Pinned {
            start: start.cast(),
            len,
        };
        pinned.bytes().fill(0);
        Ok(pinned)
    }

    /// Its bytes. The caller sees to it that the GPU is not writing them.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes that were zeroed; exclusive on the host by `&mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address, the same on both sides.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Copies bytes that the GPU may have written.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.len));
        for (index, byte) in into.iter_mut().enumerate() {
            // SAFETY: inside (asserted). Volatile, since another processor writes it.
            *byte = unsafe { self.start.add(offset + index).read_volatile() };
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: not used afterwards. There is nobody left to tell of a failure.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

/// A compiled kernel.
pub struct Function {
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Threads of the largest threadgroup.
    pub max_threads: u32,
}

// SAFETY: handles, which any thread may use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Compiles PTX that holds the kernel `name`, or takes it from the driver's cache.
    pub fn compile(gpu: &Gpu, name: &str, ptx: &str) -> Result<Function, GpuError> {
        gpu.enter()?;
        let text = CString::new(ptx).map_err(|_| GpuError::Device(format!("{name}: PTX with a zero byte")))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG_BYTES)];
        let mut module = ptr::null_mut();
        // SAFETY: the text ends in a zero; two options with their values, the log being as long as is said.
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut module,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check(code, &format!("compiling {name}")).map_err(|error| {
            let said = CStr::from_bytes_until_nul(&log)
                .map(CStr::to_string_lossy)
                .unwrap_or_default();
            GpuError::Device(format!("{error} {}", said.trim()))
        })?;
        let mut compiled = Function {
            module,
            function: ptr::null_mut(),
            max_threads: 0,
        };
        let symbol = CString::new(name).map_err(|_| GpuError::Device(format!("{name}: no name of a kernel")))?;
        // SAFETY: writes a handle, which lives as long as the module.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut compiled.function, module, symbol.as_ptr()) };
        check(code, &format!("finding {name}"))?;
        let limit = compiled.attribute(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        compiled.max_threads = limit.unsigned_abs();
        Ok(compiled)
    }

    /// Lets launches have so many bytes of threadgroup argument; more than 48 KiB in all must be asked for.
    pub fn allow_threadgroup_bytes(&self, bytes: u32) -> Result<(), GpuError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: sets a number of a function that is loaded.
        let code = unsafe { sys::cuFuncSetAttribute(self.function, attribute, bytes.cast_signed()) };
        check(code, &format!("asking for {bytes} bytes of threadgroup memory"))
    }

    fn attribute(&self, attribute: sys::CUfunction_attribute) -> Result<c_int, GpuError> {
        let mut value = 0;
        // SAFETY: writes a number.
        let code = unsafe { sys::cuFuncGetAttribute(&raw mut value, attribute, self.function) };
        check(code, "asking about a kernel").map(|()| value)
    }

    /// Registers of a thread, bytes of threadgroup memory, bytes of a thread's own memory (spills, and arrays that are indexed).
    pub fn resources(&self) -> Result<[c_int; 3], GpuError> {
        use sys::CUfunction_attribute as Attribute;
        Ok([
            self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            self.attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        ])
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // SAFETY: not used afterwards: recordings are destroyed before the kernels that they use.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// The values of a kernel's parameters, in order.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    words: Vec<u64>,
    /// First word of each.
    starts: Vec<usize>,
}

impl Parameters {
    /// Appends an address.
    pub fn address(&mut self, address: u64) {
        self.starts.push(self.words.len());
        self.words.push(address);
    }

    /// Appends bytes that are passed by value.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.starts.push(self.words.len());
        self.words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        }));
    }

    fn pointers(&mut self) -> Vec<*mut c_void> {
        let words = self.words.as_mut_ptr();
        // SAFETY: every start lies inside.
        self.starts
            .iter()
            .map(|&start| unsafe { words.add(start) }.cast())
            .collect()
    }
}

/// A grid of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Threadgroups.
    pub threadgroups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
    /// Bytes of the threadgroup argument.
    pub threadgroup_bytes: u32,
}

/// Launches a kernel after the work that is queued. The caller has checked that its parameters are those of the kernel.
pub fn launch(stream: &Stream, function: &Function, grid: Grid, parameters: &mut Parameters) -> Result<(), GpuError> {
    let mut pointers = parameters.pointers();
    let ([gx, gy, gz], [tx, ty, tz]) = (grid.threadgroups, grid.threads);
    // SAFETY: the pointers name one value for each parameter, of its size, which are copied by the call.
    let code = unsafe {
        sys::cuLaunchKernel(
            function.function,
            gx,
            gy,
            gz,
            tx,
            ty,
            tz,
            grid.threadgroup_bytes,
            stream.0,
            pointers.as_mut_ptr(),
            ptr::null_mut(),
        )
    };
    check(code, "launching a kernel")
}

/// Kernels and their order, being put together.
pub struct GraphBuilder {
    graph: sys::CUgraph,
    nodes: Vec<sys::CUgraphNode>,
}

impl GraphBuilder {
    /// An empty one.
    pub fn new() -> Result<GraphBuilder, GpuError> {
        let mut graph = ptr::null_mut();
        // SAFETY: writes a handle.
        check(unsafe { sys::cuGraphCreate(&raw mut graph, 0) }, "making a graph")?;
        Ok(GraphBuilder {
            graph,
            nodes: Vec::new(),
        })
    }

    /// Adds a kernel. The caller has checked that its parameters are those of the kernel.
    pub fn kernel(&mut self, function: &Function, grid: Grid, parameters: &mut Parameters) -> Result<(), GpuError> {
        let mut pointers = parameters.pointers();
        let ([gx, gy, gz], [tx, ty, tz]) = (grid.threadgroups, grid.threads);
        let described = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.function,
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: tx,
            blockDimY: ty,
            blockDimZ: tz,
            sharedMemBytes: grid.threadgroup_bytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        };
        let mut node = ptr::null_mut();
        // SAFETY: the pointers name one value for each parameter, of its size, which are copied by the call.
        let code =
            unsafe { sys::cuGraphAddKernelNode_v2(&raw mut node, self.graph, ptr::null(), 0, &raw const described) };
        check(code, "adding a kernel to a graph")?;
        self.nodes.push(node);
        Ok(())
    }

    /// Makes it run in the order of `edges`, pairs of kernels by number. With `early`, a kernel may start before those that it
    /// comes after are done; it waits for them itself.
    pub fn finish(self, edges: &[(usize, usize)], early: bool) -> Result<Graph, GpuError> {
        let from: Vec<sys::CUgraphNode> = edges.iter().map(|edge| self.nodes[edge.0]).collect();
        let to: Vec<sys::CUgraphNode> = edges.iter().map(|edge| self.nodes[edge.1]).collect();
        let kind = match early {
            true => sys::CUgraphEdgeData {
                from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
                to_port: 0,
                type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
                reserved: [0; 5],
            },
            false => sys::CUgraphEdgeData {
                from_port: 0,
                to_port: 0,
                type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_DEFAULT as u8,
                reserved: [0; 5],
            },
        };
        let kinds = vec![kind; edges.len()];
        if !edges.is_empty() {
            // SAFETY: three arrays of `edges.len()` entries, the nodes being the graph's own.
            let code = unsafe {
                sys::cuGraphAddDependencies_v2(self.graph, from.as_ptr(), to.as_ptr(), kinds.as_ptr(), edges.len())
            };
            check(code, "adding edges to a graph")?;
        }
        let mut graph = ptr::null_mut();
        // SAFETY: writes a handle.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut graph, self.graph, 0) };
        check(code, "preparing a graph")?;
        Ok(Graph(graph))
    }
}

impl Drop for GraphBuilder {
    fn drop(&mut self) {
        // SAFETY: not used afterwards; what was made of it stands on its own.
        let _ = unsafe { sys::cuGraphDestroy(self.graph) };
    }
}

/// Kernels and their order, ready to run.
pub struct Graph(sys::CUgraphExec);

// SAFETY: a handle; the device has one owner.
unsafe impl Send for Graph {}

impl Graph {
    /// Runs it after the work that is queued.
    pub fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both exist. The device keeps the graph until the work is done.
        check(unsafe { sys::cuGraphLaunch(self.0, stream.0) }, "running a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: not used afterwards; the device drops it once its last run is done.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

//! This machine: its memory, and what a report says about it.

use serde::Serialize;
use sysinfo::System;

/// What measurements say about the machine that they were made on.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Operating system.
    pub os: &'static str,
    /// Instruction set.
    pub arch: &'static str,
    /// Processor, as the system calls it.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let mut system = System::new();
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        let brand = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
        Machine {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: brand
                .filter(|brand| !brand.is_empty())
                .unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory(),
        }
    }
}

/// Bytes of memory that this process may use: the machine's, or less in a container.
pub fn memory() -> u64 {
    let mut system = System::new();
    system.refresh_memory();
    let total = system.total_memory();
    match system.cgroup_limits() {
        Some(limits) if limits.total_memory > 0 => limits.total_memory.min(total),
        _ => total,
    }
}

/// Most bytes of memory that this process has held at once; `None` where the system does not say.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

//! The conditions of a measurement: what else the machine did, and whether it was slowed down.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde::Serialize;
use sysinfo::System;

/// Share of the processors that others may use before a figure means less, in percent.
const MOST_BUSY: f32 = 10.0;
/// Share of the time that the host of a virtual machine may take away, in percent.
const MOST_STOLEN: f64 = 1.0;

/// What was seen around and during a measurement.
#[derive(Debug, Default, Serialize)]
pub struct Conditions {
    /// Processes that wanted to run, mean of the minute before.
    pub load_before: f64,
    /// The most that others used of the processors before an arm, in percent.
    pub busy_percent: f32,
    /// Processor time that the host took from a virtual machine meanwhile, in percent of all.
    pub stolen_percent: Option<f64>,
    /// What makes the figures doubtful, for people.
    pub warnings: Vec<String>,
}

/// Looks at the machine while a measurement runs.
pub struct Watch {
    system: System,
    conditions: Conditions,
    before: Counters,
}

impl Watch {
    /// Begins, before anything is loaded.
    pub fn start() -> Self {
        let mut watch = Watch {
            system: System::new(),
            conditions: Conditions {
                load_before: System::load_average().one,
                ..Conditions::default()
            },
            before: Counters::now(),
        };
        if on_battery() {
            watch.warn("the machine runs on its battery".into());
        }
        watch.look();
        watch
    }

    /// Samples what others use of the processors; nothing of ours may be running.
    pub fn look(&mut self) {
        self.system.refresh_cpu_usage();
        thread::sleep(sysinfo::MINIMUM_CPU_UPDATE_INTERVAL);
        self.system.refresh_cpu_usage();
        self.conditions.busy_percent = self.conditions.busy_percent.max(self.system.global_cpu_usage());
    }

    /// Something else that makes the figures doubtful.
    pub fn warn(&mut self, warning: String) {
        if !self.conditions.warnings.contains(&warning) {
            self.conditions.warnings.push(warning);
        }
    }

    /// Ends.
    pub fn finish(mut self) -> Conditions {
        let after = Counters::now();
        let busy = self.conditions.busy_percent;
        if busy > MOST_BUSY {
            self.warn(format!("other programs used {busy:.0} % of the processors"));
        }
        self.conditions.stolen_percent = Counters::stolen(&self.before, &after);
        if let Some(stolen) = self.conditions.stolen_percent.filter(|&stolen| stolen > MOST_STOLEN) {
            self.warn(format!(
                "the host took {stolen:.1} % of the processor time of this virtual machine"
            ));
        }
        if after.throttled > self.before.throttled {
            self.warn("the processor was slowed down because of its temperature".into());
        }
        if after.quota > self.before.quota {
            self.warn("the container used up its share of processor time".into());
        }
        if after.gpu_throttled > self.before.gpu_throttled {
            self.warn("the GPU was slowed down because of its temperature".into());
        }
        if let Some(limit) = speed_limit().filter(|&limit| limit < 100) {
            self.warn(format!(
                "macOS limits the processor to {limit} % because of its temperature"
            ));
        }
        self.conditions
    }
}

/// What the system counts; 0 where it does not.
#[derive(Default)]
struct Counters {
    /// Processor time in ticks: all, and stolen by the host.
    ticks: Option<(u64, u64)>,
    /// Thermal events of all cores.
    throttled: u64,
    /// Periods in which the container's quota was used up.
    quota: u64,
    /// Microseconds for which NVIDIA GPUs were slowed down because of their temperature.
    gpu_throttled: u64,
}

impl Counters {
    fn now() -> Self {
        Counters {
            ticks: fs::read_to_string("/proc/stat").ok().and_then(|stat| ticks(&stat)),
            throttled: core_throttles(),
            quota: fs::read_to_string("/sys/fs/cgroup/cpu.stat").map_or(0, |stat| named(&stat, "nr_throttled")),
            gpu_throttled: gpu_throttled(),
        }
    }

    fn stolen(before: &Self, after: &Self) -> Option<f64> {
        let ((all, stolen), (all_before, stolen_before)) = (after.ticks?, before.ticks?);
        let passed = all.checked_sub(all_before).filter(|&passed| passed > 0)?;
        Some(100.0 * stolen.saturating_sub(stolen_before) as f64 / passed as f64)
    }
}

/// All and stolen ticks of `/proc/stat`: the eighth number of its first line is the stolen ones, and those after it are part of others.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map_while(|number| number.parse().ok())
        .take(8)
        .collect();
    Some((numbers.iter().sum(), *numbers.get(7)?))
}

fn named(text: &str, name: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

fn core_throttles() -> u64 {
    let Ok(cpus) = fs::read_dir("/sys/devices/system/cpu") else {
        return 0;
    };
    let count = |cpu: &Path| -> Option<u64> {
        let text = fs::read_to_string(cpu.join("thermal_throttle/core_throttle_count")).ok()?;
        text.trim().parse().ok()
    };
    cpus.filter_map(|cpu| count(&cpu.ok()?.path())).sum()
}

fn gpu_throttled() -> u64 {
    if !Path::new("/dev/nvidiactl").exists() {
        return 0;
    }
    const COUNTERS: &str = "--query-gpu=clocks_event_reasons_counters.sw_thermal_slowdown,clocks_event_reasons_counters.hw_thermal_slowdown";
    let asked = Command::new("nvidia-smi")
        .args([COUNTERS, "--format=csv,noheader,nounits"])
        .output();
    let Ok(output) = asked else { return 0 };
    String::from_utf8_lossy(&output.stdout)
        .split([',', '\n'])
        .filter_map(|number| number.trim().parse::<u64>().ok())
        .sum()
}

fn pmset(topic: &str) -> Option<String> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = Command::new("pmset").args(["-g", topic]).output().ok()?;
    String::from_utf8(output.stdout).ok()
}

fn on_battery() -> bool {
    if let Some(text) = pmset("batt") {
        return text.contains("'Battery Power'");
    }
    let Ok(supplies) = fs::read_dir("/sys/class/power_supply") else {
        return false;
    };
    let discharging =
        |supply: &Path| fs::read_to_string(supply.join("status")).is_ok_and(|s| s.trim() == "Discharging");
    supplies.flatten().any(|supply| discharging(&supply.path()))
}

/// `CPU_Speed_Limit = 100` of macOS.
fn speed_limit() -> Option<u32> {
    let text = pmset("therm")?;
    let line = text.lines().find(|line| line.contains("CPU_Speed_Limit"))?;
    line.split('=').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_host_takes() {
        let before = "cpu  100 0 50 800 0 0 0 50 0 0\ncpu0 1 2 3\n";
        let after = "cpu  150 0 60 880 0 0 0 60 30 0\n";
        assert_eq!(ticks(before), Some((1000, 50)));
        let counters = |stat| Counters {
            ticks: ticks(stat),
            ..Counters::default()
        };
        let stolen = Counters::stolen(&counters(before), &counters(after)).unwrap();
        assert!((stolen - 100.0 * 10.0 / 150.0).abs() < 1e-9, "{stolen}");
        assert_eq!(Counters::stolen(&counters("intr 5"), &counters(after)), None);
    }

    #[test]
    fn counters_by_name() {
        assert_eq!(
            named("nr_periods 9\nnr_throttled 4\nthrottled_usec 77\n", "nr_throttled"),
            4
        );
        assert_eq!(named("nr_periods 9\n", "nr_throttled"), 0);
    }

    #[test]
    fn warnings_are_told_once() {
        let mut watch = Watch::start();
        let there = watch.conditions.warnings.len();
        watch.warn("warm".into());
        watch.warn("warm".into());
        assert_eq!(watch.finish().warnings[there..][0], "warm");
    }
}

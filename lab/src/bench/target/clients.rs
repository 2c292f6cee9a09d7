//! One turn of a setup: a client sends requests for a given time, and the processor time of both
//! ends is measured.

pub mod initiator;
mod unsafe_ring;

use super::cells::{Cell, Contestant, DISK_BYTES, LoadClient, Setup};
use super::results::Sample;
use super::servers::{Servers, SetupPortal};
use crate::peers::iscsi_perf::{self, PerfRequest, PerfResult};
use crate::peers::load_programs::{self, LoadPrograms, LoadRequest};
use crate::system::cores::CLIENT_CORE;
use anyhow::{Context, Result};
use lunar_load::{AccessPattern, ListeningProcess};
use std::time::Duration;

/// Duration of a turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnTimes {
    pub warm_up: Duration,
    pub measured: Duration,
}

impl TurnTimes {
    /// Total time as a multiple of the measured time: processor time covers all of it.
    fn whole(&self) -> f64 {
        (self.warm_up + self.measured).as_secs_f64() / self.measured.as_secs_f64()
    }
}

/// Clients that are programs of their own.
pub struct Clients {
    /// Durations of turns from now on.
    pub times: TurnTimes,
    /// Generator of libiscsi, built on first use.
    generator: Option<LoadPrograms>,
}

/// One turn.
pub struct CommandTurn<'a> {
    pub cell: &'a Cell,
    pub setup: &'a Setup,
    /// Seed of random offsets.
    pub seed: u64,
    pub times: TurnTimes,
    pub portal: &'a SetupPortal,
}

impl Clients {
    /// Creates clients with turns of this length.
    pub fn new(times: TurnTimes) -> Self {
        Self { times, generator: None }
    }

    /// Runs one turn of a setup.
    ///
    /// # Errors
    /// The contestant does not start, or the client fails.
    pub fn turn(
        &mut self,
        servers: &mut Servers,
        cell: &Cell,
        setup: &Setup,
        seed: u64,
    ) -> Result<Sample> {
        let portal = servers.portal(setup.contestant)?;
        let turn = CommandTurn { cell, setup, seed, times: self.times, portal: &portal };
        if setup.contestant == Contestant::Ring {
            return unsafe_ring::turn(&turn, servers.path()?);
        }
        let owner = ListeningProcess { pid: portal.pid };
        let before = owner.processor_time();
        let (mut sample, whole) = match setup.client {
            LoadClient::Ours => (initiator::turn(&turn)?, self.times.whole()),
            LoadClient::Libiscsi => (self.libiscsi(&turn)?, self.times.whole()),
            LoadClient::Own => (turn.own_client()?, self.times.whole()),
            LoadClient::Perf => turn.perf()?,
        };
        let spent = before.zip(owner.processor_time());
        if let Some(spent) = spent.map(|(from, to)| to.saturating_sub(from).as_secs_f64()) {
            let requests = sample.iops * self.times.measured.as_secs_f64() * whole;
            sample.target_cpu_us = (requests > 0.0).then(|| spent * 1e6 / requests);
            sample.target_busy = sample.target_cpu_us.map(|each| each * sample.iops / 1e6);
        }
        Ok(sample)
    }

    fn libiscsi(&mut self, turn: &CommandTurn<'_>) -> Result<Sample> {
        if self.generator.is_none() {
            self.generator = Some(LoadPrograms::generator(turn.core())?);
        }
        let generator = self.generator.as_ref().context("built above")?;
        Ok(turn.sample(&generator.libiscsi(&turn.request())?))
    }
}

impl CommandTurn<'_> {
    /// Runs `lunar bench` of the build that serves.
    fn own_client(&self) -> Result<Sample> {
        let program = self.portal.program.as_ref().context("only Lunar brings a client")?;
        let client = LoadPrograms::of_build(self.core(), program);
        Ok(self.sample(&client.lunar(&self.request())?))
    }

    /// Runs iscsi-perf for whole seconds; the second value is their ratio to the measured time.
    fn perf(&self) -> Result<(Sample, f64)> {
        let measured = self.times.measured.as_secs_f64();
        let seconds = measured.ceil().max(1.0);
        let request = PerfRequest {
            url: &self.portal.url,
            is_random: self.cell.pattern == AccessPattern::RandomRead,
            io_bytes: self.cell.io_bytes,
            depth: self.cell.depth,
            seconds: seconds as u32,
        };
        let PerfResult { iops, busy } = iscsi_perf::run(self.core(), &request)?;
        let sample = Sample {
            iops,
            bytes_per_second: iops * f64::from(self.cell.io_bytes),
            client_busy: busy,
            ..Sample::default()
        };
        Ok((sample, seconds / measured))
    }

    /// Returns the core of a client that is a program of its own.
    fn core(&self) -> Option<u16> {
        (!self.cell.is_shared).then_some(CLIENT_CORE)
    }

    fn request(&self) -> LoadRequest<'_> {
        LoadRequest {
            url: &self.portal.url,
            pattern: self.cell.pattern.name(),
            io_bytes: self.cell.io_bytes.into(),
            depth: self.cell.depth,
            range_bytes: DISK_BYTES,
            seconds: self.times.measured.as_secs_f64(),
            warm_up: self.times.warm_up.as_secs_f64(),
            seed: self.seed,
        }
    }

    /// Converts the sample of a client that is a program of its own.
    fn sample(&self, program_sample: &load_programs::Sample) -> Sample {
        let [p50, p99, p99_9] = program_sample.latency_micros.map(Some);
        Sample {
            iops: program_sample.iops,
            bytes_per_second: program_sample.iops * f64::from(self.cell.io_bytes),
            p50_us: p50,
            p99_us: p99,
            p99_9_us: p99_9,
            client_busy: Some(program_sample.cpu_micros * program_sample.iops / 1e6),
            ..Sample::default()
        }
    }
}

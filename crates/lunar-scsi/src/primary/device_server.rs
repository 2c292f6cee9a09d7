//! A type of logical units: its commands and its pages, around a [`PrimaryUnit`].

use super::{Context, PrimaryUnit};
use crate::commands::{CommandRow, CommandTable, Request};
use crate::log::{LogPage, LogSource};
use crate::mode::ModeParameters;
use crate::plan::{AwaitingParameterList, NexusId, PrimaryPlan, Refusal};
use crate::sense::Sense;
use crate::vpd::VpdPage;
use alloc::vec::Vec;

/// The part of a unit that processes commands, as SPC-4 calls it. Commands of SPC-4 are processed
/// by the same code in every type of units; a type adds its own to its [table](Self::commands).
pub trait DeviceServer: Sized + 'static {
    /// The action for one of its commands.
    type Plan: From<PrimaryPlan>;
    /// Its mode parameters.
    type Modes: ModeParameters;

    /// All vital product data pages, in ascending order.
    const VPD_PAGES: &'static [VpdPage<Self>];
    /// All log pages, in ascending order.
    const LOG_PAGES: &'static [LogPage];

    /// The commands of this type of units.
    fn commands() -> &'static CommandTable<Self>;

    /// The part that all types share.
    fn primary(&self) -> &PrimaryUnit;

    /// The part that all types share, for changes.
    fn primary_mut(&mut self) -> &mut PrimaryUnit;

    /// Checks whether a command may run in the present state of the medium.
    ///
    /// # Errors
    /// The reason why not: NOT READY, DATA PROTECT, or the sense of a failed operation.
    fn check_medium(&self, row: &CommandRow) -> Result<(), Sense>;

    /// The reason why the unit is not ready, which REQUEST SENSE reports; `None` if it is ready.
    fn not_ready(&self) -> Option<Sense>;

    /// The mode parameters, and the properties of the unit that mode pages report.
    fn modes(&self) -> (&Self::Modes, &<Self::Modes as ModeParameters>::Options);

    /// Replaces the mode parameters.
    fn set_modes(&mut self, modes: Self::Modes);

    /// The data for log pages.
    fn log_source<'a>(&'a self, context: &'a Context<'_>) -> LogSource<'a> {
        let features = self.primary().identity().features;
        LogSource { features, ports: context.ports, resources: None }
    }

    /// Encodes sense for the initiator: fixed or descriptor format, depending on D_SENSE.
    fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        sense.encode(self.modes().0.control().sense_format())
    }

    /// Plans a command. Checks, in this order: unit attention, operation code, service action and
    /// length, CONTROL, the initiator's rights, reservations, port state, the medium, then the
    /// command's own fields.
    ///
    /// # Errors
    /// The refusal to send, if the command may not run.
    #[inline]
    fn plan(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<Self::Plan, Refusal> {
        let found = Self::commands().find(self.primary().identity().features, cdb);
        if !found.is_ok_and(|command| command.row.despite_attention)
            && let Some(attention) = self.primary_mut().take_attention(nexus)
        {
            return Err(attention.sense().into());
        }
        let command = found.map_err(Sense::from)?;
        let row = &command.row;
        row.check_control(cdb)?;
        self.primary().check(row, nexus, context, cdb)?;
        self.check_medium(row)?;
        command.plan(self, &Request { nexus, context, row, cdb })
    }

    /// Checks whether a command that [`plan`](Self::plan) accepted may still run, once its data has
    /// arrived and nothing is left to wait for. A unit attention established since then is left to
    /// the next command: SAM-5 §5.14 has it reported before a command enters the task set, not
    /// after.
    ///
    /// # Errors
    /// The refusal to send, because of a change.
    #[inline]
    fn check_again(
        &self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<(), Refusal> {
        let features = self.primary().identity().features;
        let row = &Self::commands().find(features, cdb).map_err(Sense::from)?.row;
        self.primary().check(row, nexus, context, cdb)?;
        Ok(self.check_medium(row)?)
    }

    /// Continues a command whose parameter list has arrived, if it [may still
    /// run](Self::check_again).
    ///
    /// # Errors
    /// The errors of [`plan`](Self::plan).
    fn resume(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        awaiting: AwaitingParameterList,
        data: &[u8],
    ) -> Result<Self::Plan, Refusal> {
        let cdb = &awaiting.cdb;
        DeviceServer::check_again(self, nexus, context, cdb)?;
        let features = self.primary().identity().features;
        let command = Self::commands().find(features, cdb).map_err(Sense::from)?;
        command.plan_list(self, &Request { nexus, context, row: &command.row, cdb }, data)
    }
}

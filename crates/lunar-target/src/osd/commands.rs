//! Phase 3: execution of a command on the store, together with the attributes that it sets.

use super::retrieval::OsdDataIn;
use super::sense::{OsdFailure, invalid};
use super::values::CommandResults;
use super::{CheckedOsdCommand, OsdExecution, OsdExecutor};
use lunar_osd::{AccessKind, ObjectCommand, ObjectCommandResult, ObjectId, ObjectKind, StoreError};
use lunar_scsi::osd::{
    FlushScope, ListCompletion, ListRequest, ListResponseBuilder, ListedKind, MapEntry,
    MapResponseBuilder, MapType, ObjectAddress, ObjectRange, OsdCommand, RemoveScope, field_at,
};
use lunar_scsi::sense::Sense;

/// Number of ids that are read from the store at once.
const IDS_PER_READ: usize = 4096;

/// Number of written ranges that are read from the store at once.
const RANGES_PER_READ: usize = 1024;

/// Length of the header of a list.
const LIST_HEADER_BYTES: usize = 24;

/// The object of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandObject {
    /// The name; of an object that is being created, that of its partition or of the root.
    pub(super) id: ObjectId,
    /// The kind, also of an object that is being created.
    pub(super) kind: ObjectKind,
    /// Its used bytes before the command; 0 of one that is being created.
    pub(super) used_bytes: u64,
}

/// The kind of object that a command works on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ExpectedObject {
    /// An object of this kind that exists.
    Existing(ObjectKind),
    /// An object of any kind that exists.
    Any,
    /// An object of this kind that the command creates.
    New(ObjectKind),
}

/// Returns the object that a command names, and its kind; none for commands that are not supported.
pub(super) fn object_of(command: &OsdCommand) -> Option<(ObjectAddress, ExpectedObject)> {
    use ExpectedObject::{Any, Existing, New};
    let partition = |id| ObjectAddress::new(id, 0);
    Some(match *command {
        OsdCommand::FormatOsd { .. }
        | OsdCommand::FlushOsd { .. }
        | OsdCommand::List { partition: 0, .. } => {
            (ObjectAddress::ROOT, Existing(ObjectKind::Root))
        }
        OsdCommand::List { partition: id, .. }
        | OsdCommand::FlushPartition { partition: id, .. }
        | OsdCommand::RemovePartition { partition: id, .. } => {
            (partition(id), Existing(ObjectKind::Partition))
        }
        OsdCommand::Read { object, .. }
        | OsdCommand::Write { object, .. }
        | OsdCommand::Append { object, .. }
        | OsdCommand::Flush { object, .. }
        | OsdCommand::Clear { object, .. }
        | OsdCommand::Punch { object, .. }
        | OsdCommand::ReadMap { object, .. }
        | OsdCommand::Remove { object } => (object, Existing(ObjectKind::User)),
        OsdCommand::GetAttributes { object } | OsdCommand::SetAttributes { object } => {
            (object, Any)
        }
        OsdCommand::CreatePartition { requested } => {
            (partition(requested), New(ObjectKind::Partition))
        }
        OsdCommand::Create { requested, .. } | OsdCommand::CreateAndWrite { requested, .. } => {
            (requested, New(ObjectKind::User))
        }
        OsdCommand::CreateCollection { requested } => (requested, New(ObjectKind::Collection)),
        OsdCommand::ListCollection { collection, .. } if collection.object == 0 => {
            (collection, Existing(ObjectKind::Partition))
        }
        OsdCommand::ListCollection { collection, .. }
        | OsdCommand::FlushCollection { collection, .. }
        | OsdCommand::RemoveCollection { collection, .. } => {
            (collection, Existing(ObjectKind::Collection))
        }
        _ => return None,
    })
}

fn id_of(address: ObjectAddress) -> ObjectId {
    ObjectId::new(address.partition, address.object)
}

/// Returns a requested id; none if the store chooses it.
fn requested_id(id: u64) -> Option<u64> {
    Some(id).filter(|id| *id != 0)
}

impl OsdExecutor {
    /// Finds the object of a command, or that in which it creates one.
    pub(super) async fn find_object(
        &self,
        command: &OsdCommand,
    ) -> Result<CommandObject, OsdFailure> {
        let Some((address, expected)) = object_of(command) else {
            return Err(Sense::INVALID_FIELD_IN_CDB.into());
        };
        let id = match expected {
            ExpectedObject::New(ObjectKind::Partition) => ObjectId::ROOT,
            ExpectedObject::New(_) => ObjectId::of_partition(address.partition),
            _ => id_of(address),
        };
        if id.partition == 0 && id.object != 0 {
            return Err(StoreError::NoSuchPartition(0).into());
        }
        let found = self.store.information(id).await?;
        let (kind, used_bytes) = match expected {
            ExpectedObject::Any => (found.kind, found.used_bytes),
            ExpectedObject::Existing(kind) if found.kind == kind => (kind, found.used_bytes),
            ExpectedObject::New(kind) if (id.partition == 0) == (kind == ObjectKind::Partition) => {
                (kind, 0)
            }
            _ if id.partition == 0 => return Err(invalid(field_at::PARTITION).into()),
            _ => return Err(invalid(field_at::OBJECT).into()),
        };
        Ok(CommandObject { id, kind, used_bytes })
    }

    /// Refuses the removal of an object with contents, before its attributes are set.
    pub(super) async fn check_removal(
        &self,
        checked: &CheckedOsdCommand<'_>,
    ) -> Result<(), OsdFailure> {
        if let OsdCommand::RemovePartition { partition, scope: RemoveScope::EmptyOnly } =
            *checked.command()
        {
            let id = ObjectId::of_partition(partition);
            if self.store.information(id).await?.contained > 0 {
                return Err(StoreError::PartitionNotEmpty(partition).into());
            }
        }
        if let OsdCommand::RemoveCollection { force: false, .. } = *checked.command() {
            let id = checked.object.id;
            if !self.store.list_members(id, 0, 1).await?.is_empty() {
                return Err(StoreError::CollectionNotEmpty(id).into());
            }
        }
        Ok(())
    }

    /// Sets the attributes of the object of the command.
    pub(super) async fn set_attributes(
        &self,
        checked: &CheckedOsdCommand<'_>,
    ) -> Result<(), OsdFailure> {
        self.change(checked, Vec::new(), checked.object.id).await.map(drop)
    }

    /// Applies commands of the store and the attributes to set of `owner`, as one change.
    async fn change(
        &self,
        checked: &CheckedOsdCommand<'_>,
        mut commands: Vec<ObjectCommand>,
        owner: ObjectId,
    ) -> Result<Vec<ObjectCommandResult>, OsdFailure> {
        commands.extend(checked.attributes.set.iter().map(|change| change.command(owner)));
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.store.execute(commands, checked.options).await?)
    }

    /// Executes a command and puts its own data into data-in. The attributes to set are set too,
    /// unless the command removes its object.
    pub(super) async fn execute_command(
        &self,
        checked: &CheckedOsdCommand<'_>,
        data_in: &mut OsdDataIn,
    ) -> Result<OsdExecution, OsdFailure> {
        let CommandObject { id, used_bytes, .. } = checked.object;
        let mut executed = OsdExecution {
            objects: vec![id],
            results: CommandResults { used_before: used_bytes, append_start: 0 },
            sense: None,
        };
        match *checked.command() {
            OsdCommand::Create { .. }
            | OsdCommand::CreateAndWrite { .. }
            | OsdCommand::CreateCollection { .. }
            | OsdCommand::CreatePartition { .. } => executed.objects = self.create(checked).await?,
            OsdCommand::Remove { .. }
            | OsdCommand::RemoveCollection { .. }
            | OsdCommand::RemovePartition { .. } => self.remove(checked).await?,
            OsdCommand::Read { range, .. } => {
                executed.sense = self.read(checked, range, data_in).await?;
            }
            OsdCommand::Flush { .. }
            | OsdCommand::FlushCollection { .. }
            | OsdCommand::FlushPartition { .. }
            | OsdCommand::FlushOsd { .. } => {
                self.check_flush(checked).await?;
                self.set_attributes(checked).await?;
                self.store.flush().await?;
            }
            OsdCommand::List { list, .. } | OsdCommand::ListCollection { list, .. } => {
                self.list_contents(checked, &list, data_in).await?;
                self.set_attributes(checked).await?;
            }
            OsdCommand::ReadMap { start, allocation_bytes, map_type, .. } => {
                self.read_map(checked, start, (allocation_bytes, map_type), data_in).await?;
                self.set_attributes(checked).await?;
            }
            _ => {
                self.check_capacity(checked).await?;
                let commands = change_command(checked).into_iter().collect();
                let results = self.change(checked, commands, id).await?;
                if let Some(ObjectCommandResult::Offset(offset)) = results.first() {
                    executed.results.append_start = *offset;
                }
            }
        }
        Ok(executed)
    }

    /// Removes the object of the command; its attributes were set before.
    async fn remove(&self, checked: &CheckedOsdCommand<'_>) -> Result<(), OsdFailure> {
        let id = checked.object.id;
        let command = match *checked.command() {
            OsdCommand::RemovePartition { partition: id, scope } => {
                let with_contents = scope == RemoveScope::Contents;
                ObjectCommand::RemovePartition { id, with_contents }
            }
            OsdCommand::RemoveCollection { force: with_members, .. } => {
                ObjectCommand::RemoveCollection { id, with_members }
            }
            _ => ObjectCommand::Remove(id),
        };
        self.store.execute(vec![command], checked.options).await?;
        Ok(())
    }

    /// Creates the objects of the command, writes its data, and sets the attributes: as one change
    /// if the command requests an id. Otherwise the ids are only known once the objects exist, and
    /// these are removed again if the rest is not possible.
    async fn create(&self, checked: &CheckedOsdCommand<'_>) -> Result<Vec<ObjectId>, OsdFailure> {
        let (create, count) = creation(checked);
        if let Some(id) = requested_object(checked.command()) {
            let mut commands = vec![create];
            commands.extend(changes_of_new(checked, id));
            self.store.execute(commands, checked.options).await?;
            return Ok(vec![id]);
        }
        let results = self.store.execute(vec![create; count.into()], checked.options).await?;
        let created: Vec<ObjectId> = results
            .iter()
            .filter_map(|result| match result {
                ObjectCommandResult::Partition(id) => Some(ObjectId::of_partition(*id)),
                ObjectCommandResult::Object(id) => Some(*id),
                _ => None,
            })
            .collect();
        let commands: Vec<ObjectCommand> =
            created.iter().flat_map(|id| changes_of_new(checked, *id)).collect();
        if commands.is_empty() {
            return Ok(created);
        }
        if let Err(error) = self.store.execute(commands, checked.options).await {
            let remove = created.iter().map(|id| removal(*id, checked.object.kind)).collect();
            self.store.execute(remove, checked.options).await?;
            return Err(error.into());
        }
        Ok(created)
    }

    /// Returns the map of written bytes and holes in data-in.
    async fn read_map(
        &self,
        checked: &CheckedOsdCommand<'_>,
        start: u64,
        (allocation_bytes, map_type): (u64, MapType),
        data_in: &mut OsdDataIn,
    ) -> Result<(), OsdFailure> {
        let id = checked.object.id;
        let length = self.store.length(id).await?;
        if start > length {
            return Err(invalid(checked.request.cdb.version.start_at()).into());
        }
        let room = usize::try_from(allocation_bytes).unwrap_or(usize::MAX).min(data_in.room(0));
        let mut map = MapResponseBuilder::new(room);
        let mut push = |map_type_of_range, range: std::ops::Range<u64>| {
            let is_wanted = map_type == MapType::ALL || map_type == map_type_of_range;
            if is_wanted && !range.is_empty() {
                let range = ObjectRange { start: range.start, length: range.end - range.start };
                map.push(&MapEntry { map_type: map_type_of_range, range });
            }
        };
        let mut next = start;
        loop {
            let ranges = self.store.written_ranges(id, next, RANGES_PER_READ).await?;
            for range in &ranges {
                let (from, to) = (range.start.max(next), range.end.min(length));
                push(MapType::HOLE, next..from.min(length));
                push(MapType::WRITTEN, from..to);
                next = next.max(to);
            }
            // Ranges beyond the length were written since it was read.
            if next >= length || ranges.len() < RANGES_PER_READ {
                break;
            }
        }
        push(MapType::HOLE, next..length);
        data_in.put(0, &map.finish());
        self.record_access(checked, AccessKind::Data).await
    }

    /// Reads bytes into data-in. Those beyond the end of the object are zero, and a sense says how
    /// many bytes were read.
    async fn read(
        &self,
        checked: &CheckedOsdCommand<'_>,
        range: ObjectRange,
        data_in: &mut OsdDataIn,
    ) -> Result<Option<Sense>, OsdFailure> {
        let id = checked.object.id;
        let wanted = range.length.min(data_in.room(0) as u64);
        let mut read = 0;
        while read < wanted {
            let start = range.start.saturating_add(read);
            let bytes = self.store.read(id, start, wanted - read).await?;
            if bytes.is_empty() {
                break;
            }
            data_in.put(read, &bytes);
            read += bytes.len() as u64;
        }
        data_in.extend_to(usize::try_from(wanted).unwrap_or(usize::MAX));
        // The attributes to set may change the length.
        let length = self.store.length(id).await?;
        self.change(checked, Vec::new(), id).await?;
        self.record_access(checked, AccessKind::Data).await?;
        // Bytes that were appended since they were read as zeroes do not count.
        let available =
            if read < wanted { read } else { length.saturating_sub(range.start).max(read) };
        let is_past_end = range.length > available;
        Ok(is_past_end.then(|| Sense::read_past_end(available)))
    }

    /// Refuses a capacity of FORMAT OSD that the store does not have.
    async fn check_capacity(&self, checked: &CheckedOsdCommand<'_>) -> Result<(), OsdFailure> {
        let OsdCommand::FormatOsd { capacity_bytes } = *checked.command() else { return Ok(()) };
        let used = self.store.information(ObjectId::ROOT).await?.used_bytes;
        match capacity_bytes > used.saturating_add(self.store.free_bytes()) {
            true => Err(invalid(checked.request.cdb.version.length_at()).into()),
            false => Ok(()),
        }
    }

    /// Refuses a range that begins beyond the end of the object.
    async fn check_flush(&self, checked: &CheckedOsdCommand<'_>) -> Result<(), OsdFailure> {
        if let OsdCommand::Flush { scope: FlushScope::Range(range), .. } = *checked.command()
            && range.start > self.store.length(checked.object.id).await?
        {
            return Err(invalid(checked.request.cdb.version.start_at()).into());
        }
        Ok(())
    }

    /// Lists the contents of a container into data-in.
    async fn list_contents(
        &self,
        checked: &CheckedOsdCommand<'_>,
        list: &ListRequest,
        data_in: &mut OsdDataIn,
    ) -> Result<(), OsdFailure> {
        if list.with_attributes {
            return Err(Sense::invalid_field_in_cdb(field_at::FORMAT, Some(6)).into());
        }
        let container = checked.object;
        let of_collections = matches!(checked.command(), OsdCommand::ListCollection { .. });
        let kind = match container.kind {
            ObjectKind::Root => ListedKind::Partitions,
            ObjectKind::Partition if of_collections => ListedKind::Collections,
            _ => ListedKind::UserObjects,
        };
        let room = usize::try_from(list.allocation_bytes).unwrap_or(usize::MAX);
        let room = room.min(data_in.room(0));
        let version = checked.request.cdb.version;
        let mut response = ListResponseBuilder::new(version, kind, false, room);
        let entries_room = room.saturating_sub(LIST_HEADER_BYTES);
        let (mut first, mut shown, mut continuation) = (list.initial, 0_usize, None);
        loop {
            let ids = self.ids(container.id, kind, first).await?;
            for id in &ids {
                // An id that is cut is the first of the continuation.
                if continuation.is_none() && (shown + 1).saturating_mul(8) > entries_room {
                    continuation = Some(*id);
                }
                shown += 1;
                response.push(*id, &[]);
            }
            match ids.last().and_then(|last| last.checked_add(1)) {
                Some(next) if ids.len() == IDS_PER_READ => first = next,
                _ => break,
            }
        }
        let current = self.list_identifier(container.id).await?;
        let completion = ListCompletion {
            continuation,
            list_identifier: if continuation.is_some() { current } else { 0 },
            is_changed: list.list_identifier != 0 && list.list_identifier != current,
        };
        data_in.put(0, &response.finish(completion));
        self.record_access(checked, AccessKind::Data).await
    }

    /// Returns ids of the contents of a container, from `first` on.
    async fn ids(
        &self,
        container: ObjectId,
        kind: ListedKind,
        first: u64,
    ) -> Result<Vec<u64>, OsdFailure> {
        let (store, partition) = (&self.store, container.partition);
        Ok(match kind {
            ListedKind::Partitions => store.list_partitions(first, IDS_PER_READ).await?,
            ListedKind::Collections => {
                store.list_collections(partition, first, IDS_PER_READ).await?
            }
            ListedKind::UserObjects if container.object == 0 => {
                store.list(partition, first, IDS_PER_READ).await?
            }
            ListedKind::UserObjects => store.list_members(container, first, IDS_PER_READ).await?,
        })
    }

    /// Returns a number that changes with the list of a container, so that a list that continues
    /// needs no memory: it mixes the time of the last change and the number of objects.
    async fn list_identifier(&self, container: ObjectId) -> Result<u32, OsdFailure> {
        let found = self.store.information(container).await?;
        let mixed = found.times.data_modified.wrapping_mul(31).wrapping_add(found.contained);
        Ok(mixed as u32 | 1)
    }
}

/// Returns the command of the store that creates an object, and the number of objects.
fn creation(checked: &CheckedOsdCommand<'_>) -> (ObjectCommand, u16) {
    match *checked.command() {
        OsdCommand::CreatePartition { requested } => {
            (ObjectCommand::CreatePartition(requested_id(requested)), 1)
        }
        OsdCommand::CreateCollection { requested } => {
            let (partition, id) = (requested.partition, requested_id(requested.object));
            (ObjectCommand::CreateCollection { partition, id }, 1)
        }
        OsdCommand::Create { requested, count } => {
            let (partition, id) = (requested.partition, requested_id(requested.object));
            (ObjectCommand::Create { partition, id }, count.max(1))
        }
        OsdCommand::CreateAndWrite { requested, .. } => {
            let (partition, id) = (requested.partition, requested_id(requested.object));
            (ObjectCommand::Create { partition, id }, 1)
        }
        // Not a command that creates objects.
        _ => (ObjectCommand::CreatePartition(None), 0),
    }
}

/// Returns the object that a command creates if it requests an id.
fn requested_object(command: &OsdCommand) -> Option<ObjectId> {
    let (address, _) = object_of(command)?;
    match command {
        OsdCommand::CreatePartition { .. } => Some(id_of(address)).filter(|id| id.partition != 0),
        _ => Some(id_of(address)).filter(|id| id.object != 0),
    }
}

/// Returns the changes of a new object: its data and its attributes.
fn changes_of_new(checked: &CheckedOsdCommand<'_>, object: ObjectId) -> Vec<ObjectCommand> {
    let mut commands = Vec::new();
    if let OsdCommand::CreateAndWrite { range, .. } = *checked.command() {
        let data = checked.data(range.length);
        commands.push(ObjectCommand::Write { object, offset: range.start, data });
    }
    commands.extend(checked.attributes.set.iter().map(|change| change.command(object)));
    commands
}

/// Returns the command of the store that changes data; none for commands that only have attributes.
fn change_command(checked: &CheckedOsdCommand<'_>) -> Option<ObjectCommand> {
    let object = checked.object.id;
    match *checked.command() {
        OsdCommand::Write { range, .. } => {
            let data = checked.data(range.length);
            Some(ObjectCommand::Write { object, offset: range.start, data })
        }
        OsdCommand::Append { length, .. } => {
            Some(ObjectCommand::Append { object, data: checked.data(length) })
        }
        OsdCommand::Clear { range: ObjectRange { start: offset, length: len }, .. } => {
            Some(ObjectCommand::Clear { object, offset, len })
        }
        OsdCommand::Punch { range: ObjectRange { start: offset, length: len }, .. } => {
            Some(ObjectCommand::Punch { object, offset, len })
        }
        OsdCommand::FormatOsd { .. } => Some(ObjectCommand::RemoveAll),
        _ => None,
    }
}

/// Returns the command that removes a new object.
fn removal(id: ObjectId, kind: ObjectKind) -> ObjectCommand {
    match kind {
        ObjectKind::Collection => ObjectCommand::RemoveCollection { id, with_members: false },
        ObjectKind::User => ObjectCommand::Remove(id),
        _ => ObjectCommand::RemovePartition { id: id.partition, with_contents: false },
    }
}

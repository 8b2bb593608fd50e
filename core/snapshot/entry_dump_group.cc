#include "snapshot/entry_dump_group.h"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "format/entry_dump_file.h"

namespace monolith {
namespace {

std::vector<std::unique_ptr<EntryDumpCodec>> CodecsOf(const Group& group, const std::vector<int>& tables) {
  std::vector<std::unique_ptr<EntryDumpCodec>> codecs(static_cast<size_t>(group.num_tables()));
  for (const int table : tables) codecs[static_cast<size_t>(table)] = MakeEntryDumpCodec(group.table(table).spec);
  return codecs;
}

std::vector<int> TablesOf(const std::vector<DumpImportFile>& files) {
  std::vector<int> tables;
  for (const DumpImportFile& file : files) {
    for (const DumpImportFile::Section& section : file.sections) {
      if (section.table >= 0) tables.push_back(section.table);
    }
  }
  return tables;
}

DumpSection SectionOf(const Group& group, const DumpImportFile::Section& section,
                      const std::vector<std::unique_ptr<EntryDumpCodec>>& codecs) {
  if (section.table < 0) return {nullptr, {}, section.entries};
  RowBlockHeader header;
  header.digest = group.table(section.table).digest;
  header.table = static_cast<uint32_t>(section.table);
  const TableSpec& spec = group.table(section.table).spec;
  return {codecs[header.table].get(), header, section.entries, spec.skip_zero};
}

}  // namespace

std::unique_ptr<EntryDumpCodec> MakeEntryDumpCodec(const TableSpec& spec) {
  std::vector<DumpSegment> segments;
  std::string initial_state(static_cast<size_t>(spec.state_bytes()), '\0');
  char* state = initial_state.data();
  for (const Segment& segment : spec.segments()) {
    segments.push_back({segment.dim, segment.optimizer_kind, segment.state_bytes});
    segment.optimizer->InitState(reinterpret_cast<std::byte*>(state));
    state += segment.state_bytes;
  }
  return std::make_unique<EntryDumpCodec>(segments, std::move(initial_state), spec.serving,
                                          spec.wide_slots().empty() ? "" : spec.name);
}

int64_t ImportEntryDump(Group& group, const std::vector<DumpImportFile>& files, RecordCompression compression,
                        int threads, bool group_is_changed, TransferProgress* progress) {
  const auto codecs = CodecsOf(group, TablesOf(files));
  BlockSink sink;
  if (group_is_changed) {
    sink = [&group](const std::vector<std::string>& blocks) {
      const std::vector<std::string_view> views(blocks.begin(), blocks.end());
      group.Load(RowBlockView::AllOf(views), 0, kNumBuckets, {});
    };
  }
  std::atomic<int64_t> rows{0};
  TaskTeam(*progress).Run(files.size(), threads, [&](size_t i, size_t /*worker*/) {
    std::vector<DumpSection> sections;
    for (const auto& section : files[i].sections) sections.push_back(SectionOf(group, section, codecs));
    const uint64_t read = ReadEntryDumpFile(files[i].path, compression, sections, sink, progress);
    rows.fetch_add(static_cast<int64_t>(read), std::memory_order_relaxed);
  });
  return rows.load(std::memory_order_relaxed);
}

std::vector<std::vector<uint64_t>> ExportEntryDump(const Group& group, Cut& cut,
                                                   const std::vector<DumpExportFile>& files,
                                                   const std::vector<int>& tables, RecordCompression compression,
                                                   bool drop_expired, int threads, TransferProgress* progress) {
  const auto codecs = CodecsOf(group, tables);
  std::vector<const EntryDumpCodec*> views;
  for (const auto& codec : codecs) views.push_back(codec.get());
  std::vector<std::vector<uint64_t>> entries(files.size());
  try {
    TaskTeam(*progress).Run(files.size(), threads, [&](size_t i, size_t /*worker*/) {
      const DumpExportFile& file = files[i];
      const auto source = cut.Blocks(file.begin, file.end, {.state = true, .drop_expired = drop_expired});
      entries[i] = WriteEntryDumpFile(source.get(), views, {file.path, file.temporary_path, compression}, progress);
    });
  } catch (...) {
    for (size_t i = 0; i < files.size(); ++i) {
      if (!entries[i].empty()) ::unlink(files[i].path.c_str());
    }
    throw;
  }
  return entries;
}

}  // namespace monolith

// EntryDump files of a group's tables. Each function blocks its caller; files are divided among a few threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "format/entry_dump.h"
#include "format/record_file.h"
#include "format/task_team.h"
#include "table/cut.h"
#include "table/group.h"

namespace monolith {

// Returns the codec of a table's rows.
std::unique_ptr<EntryDumpCodec> MakeEntryDumpCodec(const TableSpec& spec);

struct DumpImportFile {
  struct Section {     // consecutive entries of one table
    int table;         // -1: skip
    uint64_t entries;  // DumpSection::kToTheEnd: all remaining ones
  };
  std::string path;
  std::vector<Section> sections;
};

// Reads and checks files; with `group_is_changed` their rows are put into the group as well (upserted, without
// admission). Returns the number of rows. Errors are those of ReadEntryDumpFile.
int64_t ImportEntryDump(Group& group, const std::vector<DumpImportFile>& files, RecordCompression compression,
                        int threads, bool group_is_changed, TransferProgress* progress);

struct DumpExportFile {
  std::string path;
  std::string temporary_path;
  uint32_t begin;  // buckets [begin, end)
  uint32_t end;
};

// Writes the rows of some tables as they were at the cut. Returns the entries by file and table. On an error the
// finished files are removed.
std::vector<std::vector<uint64_t>> ExportEntryDump(const Group& group, Cut& cut,
                                                   const std::vector<DumpExportFile>& files,
                                                   const std::vector<int>& tables, RecordCompression compression,
                                                   bool drop_expired, int threads, TransferProgress* progress);

}  // namespace monolith

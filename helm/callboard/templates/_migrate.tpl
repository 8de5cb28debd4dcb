{{/* The container that migrates: {root, secret}. It waits briefly for a lock, and often. */}}
{{- define "callboard.migrateContainer" -}}
- name: migrate
  args: [migrate, --wait, {{ include "callboard.text" .root.Values.migrations.waitSeconds | quote }}]
  env:
    - name: CALLBOARD_LOG_FORMAT
      value: json
    {{- include "callboard.databaseUrl" . | nindent 4 }}
    {{- with .root.Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- include "callboard.container" .root | nindent 2 }}
  {{- include "callboard.resources" .root.Values.migrations.resources | nindent 2 }}
{{- end -}}

{{- define "callboard.migrateInit" -}}
{{- if eq (include "callboard.migrationMode" .) "init" }}
initContainers:
  {{- include "callboard.migrateContainer" (dict "root" . "secret" (include "callboard.fullname" .)) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "inlay.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "inlay.selector" -}}
app.kubernetes.io/name: inlay
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "inlay.labels" -}}
{{ include "inlay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "inlay.metadata" -}}
name: {{ include "inlay.name" . }}
labels:
  {{- include "inlay.labels" . | nindent 2 }}
{{- end }}

{{- define "inlay.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (printf "%s-%s" $.Chart.AppVersion $.Values.accelerator) }}{{ end }}
{{- end -}}
{{- end }}

{{/* The scheme of the pods' HTTP ports. */}}
{{- define "inlay.scheme" -}}
{{ if .Values.tls.secret }}https{{ else }}http{{ end }}
{{- end }}

{{/* Not empty where models are exported by this release. */}}
{{- define "inlay.exports" -}}
{{- range .Values.models }}{{ if .source }}{{ .name }} {{ .source }}{{ range .options }} {{ . }}{{ end }}
{{ end }}{{ end -}}
{{- end }}

{{/* What selects the series of this release in PromQL. */}}
{{- define "inlay.series" -}}
namespace={{ .Release.Namespace | quote }},job={{ include "inlay.name" . | quote }}
{{- end }}

{{- define "inlay.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "inlay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What every pod of the chart has. */}}
{{- define "inlay.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # the server ignores INLAY_PORT=tcp://... as well
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "inlay.podSecurity" . | nindent 2 }}
{{- end }}

{{- define "inlay.modelsVolume" -}}
{{- with .Values.storage -}}
- name: models
  {{- if eq .kind "image" }}
  image:
    reference: {{ required "storage.image.reference: the image that holds the exported models" .image.reference }}
    pullPolicy: {{ .image.pullPolicy }}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ .existingClaim | default (printf "%s-models" (include "inlay.name" $)) }}
  {{- end }}
{{- end -}}
{{- end }}

{{/* The container that exports the models; `arguments` are those of files/export.sh behind the list. */}}
{{- define "inlay.exportContainer" -}}
{{- $root := .root -}}
{{- $arguments := .arguments -}}
- name: export
  image: {{ include "inlay.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command: [sh, /etc/inlay/export/export.sh, /etc/inlay/export/models]
  {{- with $arguments }}
  args: {{ toJson . }}
  {{- end }}
  env:
    - name: INLAY_STORE
      value: /models
    {{- with $root.Values.hub }}
    {{- with .endpoint }}
    - name: HF_ENDPOINT
      value: {{ . | quote }}
    {{- end }}
    {{- if and .tokenSecret.name (not $arguments) }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {{ toJson .tokenSecret }}
    {{- end }}
    {{- end }}
    {{- with $root.Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $root.Values.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- include "inlay.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - name: models
      mountPath: /models
    - name: export
      mountPath: /etc/inlay/export
      readOnly: true
    - name: tmp
      mountPath: /tmp
    {{- with $root.Values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "inlay.exportVolumes" -}}
- name: export
  configMap:
    name: {{ include "inlay.name" . }}-export
{{ include "inlay.scratchVolume" . }}
{{- end }}

{{- define "inlay.scratchVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.scratch }}
{{- end }}

{{- define "inlay.keysVolume" -}}
- name: keys
  secret:
    secretName: {{ .Values.apiKeys.secret }}
    defaultMode: 0440
    items:
      - key: {{ .Values.apiKeys.key }}
        path: keys
{{- end }}

{{/* A setting's value as its variable has it. Helm reads whole numbers as 1e+06. */}}
{{- define "inlay.setting" -}}
{{- if kindIs "slice" . }}{{ join "," . }}{{ else if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
